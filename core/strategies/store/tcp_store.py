"""The TCP store of a run: rank 0 serves it on a port, a free one unless one is named, and the others connect to it."""

from __future__ import annotations

import atexit
import ctypes
import errno
import ipaddress
import os
import socket
import threading
import time
import weakref
from datetime import timedelta

import torch.distributed as dist

from ...errors import LaunchError
from ...utilities.torch_private import LIBUV_TAKES_SOCKETS, PrefixStore, Store, TCPStore, clone_of_store
from ..time_limits import CONNECTING_SECONDS, LONGEST_PAUSE_SECONDS, PORT_SECONDS, LongWait

DEFAULT_TIMEOUT = timedelta(minutes=30)
_hosted: dict[int, TCPStore] = {}
"""The stores on fixed ports. A port belongs to the process: a later run finds the same store there."""
_served: weakref.WeakSet[TCPStore] = weakref.WeakSet()
"""The stores that threads of this process serve."""


def _keep_served() -> None:
    # A store's destructor joins its thread. A forked process has no such thread and would end with a segmentation
    # fault, for example a loader's worker whose garbage collector finds a Trainer of an earlier run.
    for store in _served:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_served)


class RunStore(PrefixStore):
    """A part of a store, for one run.

    Args:
        prefix: What its keys begin with.
        store: The whole.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__(prefix, store)
        self.prefix, self.store = prefix, store  # the object in _served has to live as long as what it stands for


def another_connection(store: Store) -> Store:
    """Another connection to ``store``, for a thread: while one waits, nothing else can use its connection."""
    clone = clone_of_store(store)
    if clone is not None:
        return clone
    if isinstance(store, RunStore):
        return PrefixStore(store.prefix, another_connection(store.underlying_store))
    if isinstance(store, TCPStore):
        timeout: timedelta = store.timeout  # type: ignore[attr-defined]  # torch does not declare it
        return TCPStore(store.host, store.port, None, False, timeout, wait_for_workers=False)
    raise TypeError(f"store={store!r}: a second connection to it cannot be made")


def listen_on_loopback(host: str, port: int) -> socket.socket | None:
    """A socket that only this machine reaches; ``None`` if ``host`` is not a loopback address.

    Args:
        host: ``localhost``, an address, or a name, which may mean another address to other machines.
        port: A port, or 0 for a free one.

    Raises:
        OSError: The port cannot be opened.
    """
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return None
    if not address.is_loopback:
        return None
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    deadline = time.monotonic() + PORT_SECONDS
    while True:
        try:
            # The backlog is for all ranks at once, on a machine with many devices.
            return socket.create_server((str(address), port), family=family, backlog=1024)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise
        time.sleep(LONGEST_PAUSE_SECONDS)


def host_store(host: str, port: int = 0, *, timeout: timedelta = DEFAULT_TIMEOUT) -> TCPStore:
    """Open the store in which processes find each other, and serve it from this process.

    The store asks no one for a secret. With a loopback address as ``host``, only this machine reaches it.
    A process that is forked from this one does not end the store, and has no use of it.

    Args:
        host: The address by which this process reaches itself; unless it is a loopback address, others may use another
            address of this machine.
        port: A port, which stays open as long as this process lives; or 0 for a free one (``store.port``), which is
            open as long as the returned object lives.
        timeout: The time limit of operations on the store.

    Raises:
        LaunchError: The port cannot be opened.
    """
    if port in _hosted:
        return _hosted[port]
    try:
        listener = listen_on_loopback(host, port)
        if listener is None:
            store = TCPStore(host, port, None, True, timeout, wait_for_workers=False)
        else:
            store = _serve_on(listener, host, timeout)
    except (dist.DistError, OSError) as error:
        raise LaunchError(f"cannot open a store at {host}:{port} for the processes to meet: {error}") from error
    _served.add(store)
    if port:
        _hosted[port] = store
    return store


def _serve_on(listener: socket.socket, host: str, timeout: timedelta) -> TCPStore:
    """The store that answers at a socket, which it closes."""
    port, descriptor = listener.getsockname()[1], listener.detach()

    def serve(use_libuv: bool) -> TCPStore:
        return TCPStore(
            host, port, None, True, timeout, wait_for_workers=False, master_listen_fd=descriptor, use_libuv=use_libuv
        )

    try:
        return serve(LIBUV_TAKES_SOCKETS)
    except NotImplementedError:
        return serve(False)


def connect_store(host: str, port: int, *, timeout: timedelta = DEFAULT_TIMEOUT) -> TCPStore:
    """Connect to the store that another process serves; wait until it does.

    Args:
        host: The address of its machine.
        port: Its port.
        timeout: The time limit for connecting, and of operations on the store.

    Raises:
        LaunchError: No store answers within the time limit.
    """
    made: list[TCPStore] = []
    errors: list[BaseException] = []

    def connect() -> None:
        try:
            made.append(TCPStore(host, port, None, False, timeout, wait_for_workers=False))
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            errors.append(error)

    # Torch waits forever for the answer of whatever accepts the connection. So it does in another thread.
    thread = threading.Thread(target=connect, name="core-connect", daemon=True)
    thread.start()
    wait = LongWait(f"this process waits for rank 0, which serves the store at {host}:{port}", timeout)
    while thread.is_alive() and not wait.is_over:
        thread.join(wait.seconds_to_next)
        if thread.is_alive():
            wait.tell()
    thread.join(1.0)  # torch's own error at the same limit says more
    if thread.is_alive():
        # If torch gives up while the interpreter ends, it aborts the process.
        atexit.register(thread.join, CONNECTING_SECONDS)
    if made:
        return made[0]
    if not errors:
        raise LaunchError(
            f"what listens at {host}:{port} has accepted a connection, but is no store for the processes to meet: it "
            f"has not answered within {timeout}. Use another port (MASTER_PORT), or end the process that holds it."
        )
    if not isinstance(errors[0], RuntimeError):  # in torch 2.6 also if another program answers
        raise errors[0]
    raise LaunchError(f"no store answers at {host}:{port} for the processes to meet: {errors[0]}") from errors[0]


def address_of(store: Store) -> str:
    """Where ``store`` is served, as in ``" at 127.0.0.1:29500"``; empty if it has none."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    return "" if host is None or port is None else f" at {host}:{port}"
