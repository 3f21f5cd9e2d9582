"""Weights averaged while gradients are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.futures import Future

from torch_hal.errors import ConfigurationError
from torch_hal_bagua.algorithms.base import Connection, Replica, WeightAlgorithm
from torch_hal_bagua.buckets import weight_buckets
from torch_hal_bagua.communication import Communicator, Layout, Peers, all_reduce, swap
from torch_hal_bagua.options import boolean, choice, whole_number
from torch_hal_bagua.peers import shift_one_peer

__all__ = ["Decentralized"]

PEER_SELECTION_MODES = ("all", "shift_one")


class Decentralized(WeightAlgorithm):
    """Weights are averaged while their gradient is computed; the step is then applied to the average.

    Args:
        hierarchical: Average within each machine first, then over one process of each.
        peer_selection_mode: ``"all"`` averages over all processes; ``"shift_one"`` over pairs that change each time.
        communication_interval: The number of steps between two exchanges.
    """

    name = "decentralized"

    def __init__(
        self, hierarchical: bool = True, peer_selection_mode: str = "all", communication_interval: int = 1
    ) -> None:
        self.hierarchical = boolean("hierarchical", hierarchical)
        self.peer_selection_mode = choice("peer_selection_mode", peer_selection_mode, PEER_SELECTION_MODES)
        self.communication_interval = whole_number("communication_interval", communication_interval, 1)

    def check(self, layout: Layout) -> None:
        """``shift_one`` needs an even number of participants, to pair them."""
        parties = layout.parties(self.hierarchical)
        if self.peer_selection_mode == "shift_one" and parties % 2 and parties > 1:
            what = "machines (hierarchical=True)" if self.hierarchical else "processes"
            raise ConfigurationError(
                f"peer_selection_mode='shift_one': {parties} {what} cannot be paired. Use an even number, or set "
                "peer_selection_mode='all'."
            )

    def replica(self, module: nn.Module, wrapped: nn.Module) -> Replica:
        """See :meth:`Algorithm.replica`."""
        del wrapped
        return _DecentralizedReplica(
            module, self.connection, self.peer_selection_mode == "shift_one", self.communication_interval
        )


class _DecentralizedReplica(Replica):
    def __init__(self, module: nn.Module, connection: Connection, is_paired: bool, interval: int) -> None:
        super().__init__(module)
        self._threads = connection.threads
        self._buckets = weight_buckets(module.parameters(), connection.bucket_cap_mb)
        self._is_paired, self._interval = is_paired, interval
        self._steps = self._exchanges = 0
        self._averages: list[Future[Tensor]] = []
        """A future for each bucket while an exchange is running."""

    def before_forward(self) -> None:
        if torch.is_grad_enabled():
            self._begin()

    def before_step(self) -> None:
        self._begin()
        if self._averages:
            for bucket, average in zip(self._buckets, self._averages, strict=True):
                average.wait()
                bucket.write()
            self._averages = []
            self._exchanges += 1

    def after_step(self) -> None:
        self._steps += 1

    def restart(self) -> None:
        for average in self._averages:
            average.wait()
        self._averages = []
        self._steps = self._exchanges = 0

    def _begin(self) -> None:
        if self._averages or self._steps % self._interval:
            return
        operation = partial(_average_with_peer, exchanges=self._exchanges) if self._is_paired else _average_with_all
        for bucket in self._buckets:
            weights = bucket.read()
            self._averages.append(self._threads.submit(partial(_average, weights, operation), weights))

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "exchanges": self._exchanges}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps, self._exchanges = state["steps"], state["exchanges"]


def _average(weights: Tensor, operation: Callable[[Tensor, Peers], None], communicator: Communicator) -> None:
    communicator.among_peers(weights, operation)


def _average_with_all(weights: Tensor, peers: Peers) -> None:
    all_reduce(weights, peers, average=True)


def _average_with_peer(weights: Tensor, peers: Peers, exchanges: int) -> None:
    peer = shift_one_peer(peers.rank, peers.size, exchanges)
    theirs = torch.empty_like(weights)
    swap(weights, peer, theirs, peer, peers)
    weights.add_(theirs).div_(2)
