"""The processes that run an algorithm: all of them, or one of each machine."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Communicator", "Layout", "Peers", "all_reduce", "all_to_all", "swap"]


@attrs.frozen
class Layout:
    """How the processes of a run are distributed over machines; ranks are consecutive within each machine."""

    rank: int
    world_size: int
    local_world_size: int

    @property
    def num_nodes(self) -> int:
        """The number of machines."""
        return self.world_size // self.local_world_size

    def parties(self, hierarchical: bool) -> int:
        """The number of processes that run the algorithm."""
        return self.num_nodes if hierarchical else self.world_size


@attrs.frozen
class Peers:
    """A process group that this process belongs to."""

    group: dist.ProcessGroup
    rank: int
    """This process's rank in the group."""
    size: int

    def global_rank(self, rank: int) -> int:
        """The global rank of group rank ``rank``."""
        return dist.get_global_rank(self.group, rank)


class Communicator:
    """The process groups in which this process runs an algorithm.

    Each communicator creates its own groups, so its collectives are never mixed up with others of the run. Every
    process must create one at the same point, since creating a group is itself a collective.

    Args:
        layout: How the processes are distributed over machines.
        hierarchical: Whether the algorithm runs between the first processes of the machines, which first receive their
            machine's mean and finally broadcast the result to it.
    """

    def __init__(self, layout: Layout, hierarchical: bool) -> None:
        self.layout = layout
        self.peers: Peers | None = None
        """The processes that run the algorithm; ``None`` if this process is not one of them."""
        self._node: Peers | None = None
        local = layout.local_world_size
        if not hierarchical or local == 1:
            self.peers = _join(range(layout.world_size), layout.rank)
            return
        for first in range(0, layout.world_size, local):
            self._node = _join(range(first, first + local), layout.rank) or self._node
        self.peers = _join(range(0, layout.world_size, local), layout.rank)

    def among_peers(self, values: Tensor, operation: Callable[[Tensor, Peers], None], *, average: bool = True) -> None:
        """Combine ``values`` in place: reduce within this machine, run ``operation`` over the peers, and broadcast.

        Args:
            values: Flat and contiguous, with the same length in all processes.
            operation: Called in the peers if there are at least two; changes its first argument in place.
            average: Whether each machine contributes the mean or the sum of its processes.
        """
        self.collect(values, average)
        if self.has_peers:
            assert self.peers is not None
            operation(values, self.peers)
        self.hand_out(values)

    @property
    def has_peers(self) -> bool:
        """Whether this process runs the algorithm with at least one other process."""
        return self.peers is not None and self.peers.size > 1

    def collect(self, values: Tensor, average: bool) -> None:
        """Reduce ``values`` over this machine; only the process that runs the algorithm receives the result."""
        if self._node is not None:
            if average:
                values.div_(self._node.size)
            dist.reduce(values, self._node.global_rank(0), group=self._node.group)

    def hand_out(self, values: Tensor) -> None:
        """Broadcast ``values`` from the process that runs the algorithm to all processes of its machine."""
        if self._node is not None:
            dist.broadcast(values, self._node.global_rank(0), group=self._node.group)


def all_reduce(values: Tensor, peers: Peers, average: bool) -> None:
    """Replace ``values`` by the mean or the sum over ``peers``."""
    if average:
        values.div_(peers.size)  # before, as DistributedDataParallel: a sum of 16-bit numbers could overflow
    dist.all_reduce(values, group=peers.group)


def swap(sent: Tensor, to: int, received: Tensor, source: int, peers: Peers) -> None:
    """Send ``sent`` to the peer of rank ``to``, and receive ``received`` from the peer of rank ``source``.

    If all peers do this at once, each sends and receives one message, and no two messages share a link. On a slow
    network this is half as fast again as sending to all peers at once.
    """
    operations = [
        dist.P2POp(dist.irecv, received, peers.global_rank(source), peers.group),
        dist.P2POp(dist.isend, sent, peers.global_rank(to), peers.group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def all_to_all(sent: Tensor, peers: Peers) -> Tensor:
    """Send row ``r`` of ``sent`` to peer ``r``; row ``r`` of the result comes from peer ``r``."""
    rank, size = peers.rank, peers.size
    received = torch.empty_like(sent)
    received[rank] = sent[rank]
    for distance in range(1, size):
        to, source = (rank + distance) % size, (rank - distance) % size
        swap(sent[to], to, received[source], source, peers)
    return received


def _join(ranks: range, rank: int) -> Peers | None:
    group = dist.new_group(list(ranks))
    return Peers(group, ranks.index(rank), len(ranks)) if rank in ranks else None
