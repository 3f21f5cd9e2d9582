"""Noticing that the machine which serves the rendezvous cannot be reached any more.

torchrun's agent waits for an answer from that machine without a time limit. If the link is lost, the operating system
closes the connection after about 15 minutes, unless a shorter limit is set for the connection.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

__all__ = ["LostLink"]

LOST_SECONDS = 30
"""How long the other machine may be silent."""
# Connections may be opened at any time, so it looks for them again and again.
SCAN_SECONDS = 5.0


class LostLink:
    """A context in which connections of this process to a port fail soon after the link is lost. On Linux only.

    Args:
        port: Of the rendezvous; 0 for none.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._done = threading.Event()

    def __enter__(self) -> Self:
        if self._port and hasattr(socket, "TCP_USER_TIMEOUT") and os.path.isdir("/proc/self/fd"):
            threading.Thread(target=self._watch, name="core-lost-link", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(SCAN_SECONDS):
            for name in os.listdir("/proc/self/fd"):
                with suppress(OSError):  # closed meanwhile, or no connection
                    self._limit(int(name))

    def _limit(self, descriptor: int) -> None:
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
            return
        # A copy, since this object closes its descriptor.
        with socket.socket(fileno=os.dup(descriptor)) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername()[1] == self._port:
                # The first is for data that is never confirmed, the others for a connection without data.
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_SECONDS * 1000)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, LOST_SECONDS // 2)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, LOST_SECONDS // 6)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
