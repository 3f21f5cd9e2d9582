"""Ports of the store in which processes find each other."""

from __future__ import annotations

import errno
import ipaddress
import socket
import time

__all__ = ["listen_on_loopback"]

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
            return socket.create_server((str(address), port), family=family, backlog=1024)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise
        time.sleep(0.05)
