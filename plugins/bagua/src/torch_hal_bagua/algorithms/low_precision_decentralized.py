"""Differences of weights sent to two neighbours in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.futures import Future

from torch_hal.utilities.nested import map_tensors
from torch_hal_bagua.algorithms.base import Connection, Replica, WeightAlgorithm
from torch_hal_bagua.buckets import weight_buckets
from torch_hal_bagua.communication import Communicator, swap
from torch_hal_bagua.options import boolean, whole_number
from torch_hal_bagua.peers import ring_neighbours
from torch_hal_bagua.quantization import dequantize, quantize

__all__ = ["LowPrecisionDecentralized"]


class LowPrecisionDecentralized(WeightAlgorithm):
    """After each step, every process sends the change of its weights, in bytes, to its two neighbours in a ring.

    Args:
        hierarchical: Average within each machine in full precision first; one process of each is in the ring.
        communication_interval: The number of steps between two exchanges.
    """

    name = "low_precision_decentralized"
    compresses = True
    threads = 1  # its messages already use the links all the time, and two at once would share them

    def __init__(self, hierarchical: bool = True, communication_interval: int = 1) -> None:
        self.hierarchical = boolean("hierarchical", hierarchical)
        self.communication_interval = whole_number("communication_interval", communication_interval, 1)

    def replica(self, module: nn.Module, wrapped: nn.Module) -> Replica:
        """See :meth:`Algorithm.replica`."""
        del wrapped
        return _RingReplica(module, self.connection, self.communication_interval)


class _Known:
    """The known weights of one bucket: its own as the neighbours know them, ``W``, and theirs, ``L`` and ``R``.

    If ``x`` are the weights after a step, an exchange is::

        Q = MinMaxUInt8(x + L/3 + R/3 - 5W/3);  W += Q;  L += Q of the left;  R += Q of the right;  x = W

    They have at least float32 precision, so that the neighbours hold exactly the same values for every weight dtype.
    """

    def __init__(self, own: Tensor, left: Tensor, right: Tensor) -> None:
        self.own, self.left, self.right = own, left, right

    @classmethod
    def equal(cls, weights: Tensor) -> _Known:
        """Start with the same ``weights`` for all three."""
        wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
        return cls(wide.clone(), wide.clone(), wide.clone())

    def message(self, weights: Tensor) -> Tensor:
        """The message to the neighbours, shape ``(1, bytes)``."""
        change = weights.to(self.own.dtype, copy=True)
        change.add_(self.left, alpha=1 / 3).add_(self.right, alpha=1 / 3).sub_(self.own, alpha=5 / 3)
        return quantize(change.view(1, -1))

    def advance(self, changes: Tensor) -> None:
        """Add the changes of own, left and right, one per row."""
        for known, change in zip((self.own, self.left, self.right), changes, strict=True):
            known.add_(change)

    def tensors(self) -> dict[str, Tensor]:
        return {"own": self.own, "left": self.left, "right": self.right}


class _RingReplica(Replica):
    def __init__(self, module: nn.Module, connection: Connection, interval: int) -> None:
        super().__init__(module)
        self._communicator, self._threads = connection.communicator, connection.threads
        self._buckets = weight_buckets(module.parameters(), connection.bucket_cap_mb)
        self._interval = interval
        self._steps = 0
        self._known: list[_Known] = []
        """One per bucket if this process is in the ring; empty before the first step."""

    def before_step(self) -> None:
        if self._communicator.has_peers and not self._known:
            # Before training, the weights are the same in every process.
            self._known = [_Known.equal(bucket.read()) for bucket in self._buckets]

    def restart(self) -> None:
        self._steps = 0
        self._known.clear()

    @torch.no_grad()
    def after_step(self) -> None:
        """Exchange; it cannot overlap with the next step's forward pass, which needs the result."""
        is_due = self._steps % self._interval == 0
        self._steps += 1
        if is_due:
            messages = [self._send(bucket.read(), index) for index, bucket in enumerate(self._buckets)]
            for index, bucket in enumerate(self._buckets):
                self._take(bucket.buffer, messages[index], index)
                bucket.write()

    def _send(self, weights: Tensor, index: int) -> Future[Tensor] | None:
        """Start sending the change to the neighbours; the next bucket's message is computed meanwhile."""
        self._communicator.collect(weights, average=True)
        if not self._known:
            return None
        message = self._known[index].message(weights)
        messages = torch.cat([message, torch.empty_like(message), torch.empty_like(message)])
        return self._threads.submit(partial(_exchange, messages), messages)

    def _take(self, weights: Tensor, messages: Future[Tensor] | None, index: int) -> None:
        """Write the result of the bucket's exchange to ``weights``."""
        if messages is not None:
            self._known[index].advance(dequantize(messages.wait()))
            weights.copy_(self._known[index].own)
        self._communicator.hand_out(weights)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "known": [known.tensors() for known in self._known]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps = state["steps"]
        self._known = [_Known(**tensors) for tensors in map_tensors(self._to_device, state["known"])]

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._buckets[0].buffer.device, copy=True)


def _exchange(messages: Tensor, communicator: Communicator) -> None:
    """Send row 0 to both neighbours; rows 1 and 2 receive the left and the right neighbour's."""
    peers = communicator.peers
    assert peers is not None
    left, right = ring_neighbours(peers.rank, peers.size)
    swap(messages[0], right, messages[1], left, peers)
    if left == right:
        messages[2] = messages[1]
    else:
        swap(messages[0], left, messages[2], right, peers)
