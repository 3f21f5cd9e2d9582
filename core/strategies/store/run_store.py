"""The store of a run: serving it, connecting to it, and what is said of a wait or of a network interface."""

from __future__ import annotations

import atexit
import ctypes
import errno
import ipaddress
import logging
import os
import re
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

import torch.distributed as dist

from ...environments.local import GLOO_INTERFACE
from ...errors import LaunchError
from ...utilities.torch_private import LIBUV_TAKES_SOCKETS, PrefixStore, Store, TCPStore, clone_of_store
from ..time_limits import CONNECTING_SECONDS, LONGEST_PAUSE_SECONDS, PORT_SECONDS, TELL_SECONDS

__all__ = [
    "Patience",
    "RunStore",
    "address_of",
    "advice",
    "another_connection",
    "connect_store",
    "host_store",
    "interface_towards",
    "is_loopback",
    "named_address",
]

logger = logging.getLogger(__name__)


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
    patience = Patience(f"this process waits for rank 0, which serves the store at {host}:{port}", timeout)
    while thread.is_alive() and not patience.is_over:
        thread.join(patience.seconds_to_next)
        if thread.is_alive():
            patience.tell()
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


class Patience:
    """A wait for other processes: logs one warning when it gets long.

    Args:
        what: Who waits for what, where.
        limit: How long it waits.
    """

    def __init__(self, what: str, limit: timedelta) -> None:
        self._what, self._limit = what, limit
        self._begin = time.monotonic()
        self._has_told = False

    @property
    def is_over(self) -> bool:
        """Whether the time limit is reached."""
        return self.seconds_left <= 0

    @property
    def seconds_left(self) -> float:
        """Until the time limit."""
        return self._begin + self._limit.total_seconds() - time.monotonic()

    @property
    def seconds_to_next(self) -> float:
        """Until :meth:`tell` has something to say, or the time limit."""
        to_tell = self._begin + TELL_SECONDS - time.monotonic()
        return max(0.0, self.seconds_left if self._has_told else min(to_tell, self.seconds_left))

    def tell(self, whom: Callable[[], str] | None = None) -> None:
        """Log a warning, once, if the wait has become long.

        Args:
            whom: Returns for whom it waits; called only for the warning.
        """
        waited = time.monotonic() - self._begin
        if self._has_told or waited < TELL_SECONDS or self.is_over:
            return
        self._has_told = True
        until = datetime.now().astimezone() + timedelta(seconds=self.seconds_left)
        logger.warning(
            "%s%s since %.0f s, at most until %s",
            self._what,
            "" if whom is None else f", {whom()},",
            waited,
            f"{until:%Y-%m-%d %H:%M:%S %Z}",
        )


def address_of(store: Store) -> str:
    """Where ``store`` is served, as in ``" at 127.0.0.1:29500"``; empty if it has none."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    return "" if host is None or port is None else f" at {host}:{port}"


# Of Linux: asks for an interface's address. It fills a struct ifreq, whose address follows 20 bytes.
_SIOCGIFADDR = 0x8915
_UNREACHED = re.compile(r"connectFullMesh|[Cc]onnect timeout|timed out connecting|find address|makeDevice|getaddrinfo")


def named_address() -> str:
    """The address that this machine's name stands for; empty if none."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""


def is_loopback(address: str) -> bool:
    """Whether no other machine can reach this address."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def interface_towards(host: str) -> str:
    """The interface by which this machine reaches ``host``; empty if that cannot be said, as where it is not Linux."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return ""
    return next((name for name, each in _addresses().items() if each == own), "")


def advice(error: BaseException) -> str:
    """What to do about an error of gloo, if it may be one of the interface; else empty."""
    if not _UNREACHED.search(str(error)):
        return ""
    found = [f"{name!r} ({address})" for name, address in _addresses().items() if not is_loopback(address)]
    here = f" Interfaces of this machine: {', '.join(found)}." if found else ""
    named = named_address()
    own = f"the address that this machine's name stands for, {named}" if named else "that of this machine's name"
    return (
        f". Gloo listens at the interface that {GLOO_INTERFACE} names; without it, at {own}. If the other machines "
        f"cannot reach that, set {GLOO_INTERFACE} on each machine.{here}"
    )


def _addresses() -> dict[str, str]:
    """By interface, its IPv4 address; those without one are left out. Empty where this is not Linux."""
    found: dict[str, str] = {}
    try:
        import fcntl

        names = [name for _, name in socket.if_nameindex()]
    except (ImportError, OSError):
        return found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for name in names:
            with suppress(OSError):
                answer = fcntl.ioctl(one.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(answer[20:24])
    return found
