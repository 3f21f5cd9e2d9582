"""A rendezvous whose port for the processes' store stays free until rank 0 opens it.

torchrun's rendezvous looks for a free port and releases it at once. Rank 0 opens the port seconds later, when it has
imported torch. Until then, the kernel may give it to any other connection.
"""

from __future__ import annotations

import socket
import sys
from copy import copy

from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from ..utilities.torch_private import PrefixStore

__all__ = ["BACKEND"]

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
