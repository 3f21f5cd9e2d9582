"""The rendezvous: its port for the processes' store stays free until rank 0 opens it, and a lost link to it is noticed.

torchrun's rendezvous looks for a free port and releases it at once. Rank 0 opens the port seconds later, when it has
imported torch. Until then, the kernel may give it to any other connection.

torchrun's agent waits for an answer from the machine that serves the rendezvous without a time limit. If the link is
lost, the operating system closes the connection after about 15 minutes, unless a shorter limit is set for it.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from copy import copy
from types import TracebackType
from typing import Self

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from ..strategies.time_limits import LINK_SCAN_SECONDS, LOST_LINK_SECONDS
from ..utilities.torch_private import PrefixStore

BACKEND = "torch-hal"
"""The name of the rendezvous."""


class _ReservedPort(RendezvousHandler):
    """torchrun's rendezvous, with another port for the store."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._local_addr = parameters.local_addr
        torchruns = copy(parameters)
        torchruns.backend = "c10d"
        self._rendezvous = rendezvous_handler_registry.create_handler(torchruns)
        self._reserved: socket.socket | None = None

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        info = self._rendezvous.next_rendezvous()
        self._release()
        port = self._reserve() if info.rank == 0 else None
        store = PrefixStore("reserved", info.store)
        place = RendezvousStoreInfo.build(info.rank, store, self._local_addr, port)
        return RendezvousInfo(info.store, info.rank, info.world_size, place)

    def is_closed(self) -> bool:
        return self._rendezvous.is_closed()

    def set_closed(self) -> None:
        self._rendezvous.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        return self._rendezvous.num_nodes_waiting()

    def get_run_id(self) -> str:
        return self._rendezvous.get_run_id()

    def shutdown(self) -> bool:
        self._release()
        return self._rendezvous.shutdown()

    def _reserve(self) -> int:
        """A free port that stays bound, without listening.

        On Linux, two sockets with SO_REUSEADDR can be bound to one port as long as neither listens. So rank 0 can bind
        it and then listen, while the kernel does not choose it for a program that asks for any free port.
        """
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("", 0))
        port: int = self._reserved.getsockname()[1]
        if sys.platform != "linux":
            self._release()
        return port

    def _release(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None


rendezvous_handler_registry.register(BACKEND, _ReservedPort)


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
        while not self._done.wait(LINK_SCAN_SECONDS):
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
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_LINK_SECONDS * 1000)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, LOST_LINK_SECONDS // 2)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, LOST_LINK_SECONDS // 6)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
