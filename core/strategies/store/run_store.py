"""The store of a run, and further connections to it."""

from __future__ import annotations

import errno
import ipaddress
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed.distributed_c10d import PrefixStore, Store

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore  # torch.distributed.TCPStore is not typed
else:
    from torch.distributed import TCPStore

__all__ = ["RunStore", "another_connection", "listen_on_loopback"]


class RunStore(PrefixStore):
    """A part of a store, for one run.

    Args:
        prefix: What its keys begin with.
        store: The whole.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__(prefix, store)
        self.prefix = prefix


def another_connection(store: Store) -> Store:
    """Another connection to ``store``, for a thread: while one waits, nothing else can use its connection."""
    clone: Any = getattr(store, "clone", None)
    if clone is not None:
        connected: Store = clone()
        return connected
    # torch 2.6 cannot clone
    if isinstance(store, RunStore):
        return PrefixStore(store.prefix, another_connection(store.underlying_store))
    if isinstance(store, TCPStore):
        timeout: timedelta = store.timeout  # type: ignore[attr-defined]  # torch does not declare it
        return TCPStore(store.host, store.port, None, False, timeout, wait_for_workers=False)
    raise TypeError(f"store={store!r}: a second connection to it cannot be made")


PATIENCE = 5.0
"""Seconds to wait for a port in use. A launcher picks a free one, which a connection may take for a moment before the
store opens it."""


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
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            # The backlog is for all ranks at once, on a machine with many devices.
            return socket.create_server((str(address), port), family=family, backlog=1024)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise
        time.sleep(0.05)
