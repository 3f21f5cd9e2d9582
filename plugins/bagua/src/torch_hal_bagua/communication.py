"""The processes among which an algorithm runs: all of them, or one of each machine."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Communicator", "Layout", "Peers", "all_reduce", "all_to_all", "swap"]


@attrs.frozen
class Layout:
    """How the processes of a run lie on its machines; ranks count through the machines."""

    rank: int
    world_size: int
    local_world_size: int

    @property
    def num_nodes(self) -> int:
        """How many machines there are."""
        return self.world_size // self.local_world_size

    def parties(self, hierarchical: bool) -> int:
        """How many processes run the algorithm among themselves."""
        return self.num_nodes if hierarchical else self.world_size


@attrs.frozen
class Peers:
    """A process group that this process is in."""

    group: dist.ProcessGroup
    rank: int
    """This process's number in it."""
    size: int

    def global_rank(self, rank: int) -> int:
        """The number among all processes of number ``rank`` in this group."""
        return dist.get_global_rank(self.group, rank)


class Communicator:
    """This process's place among those that run an algorithm.

    The groups are its own: threads that use them never meet other collectives of the run. Every process creates one at
    the same point, since creating a group is a collective itself.

    Args:
        layout: How the processes lie on the machines.
        hierarchical: Whether the algorithm runs among the first processes of each machine, which take in their
            machine's mean before and hand on the outcome after.
    """

    def __init__(self, layout: Layout, hierarchical: bool) -> None:
        self.layout = layout
        self.peers: Peers | None = None
        """Those that run the algorithm; ``None`` if this process is not among them."""
        self._node: Peers | None = None
        local = layout.local_world_size
        if not hierarchical or local == 1:
            self.peers = _join(range(layout.world_size), layout.rank)
            return
        for first in range(0, layout.world_size, local):
            self._node = _join(range(first, first + local), layout.rank) or self._node
        self.peers = _join(range(0, layout.world_size, local), layout.rank)

    def among_peers(self, values: Tensor, operation: Callable[[Tensor, Peers], None], *, average: bool = True) -> None:
        """Combine ``values`` in place: over this machine, by ``operation`` over the peers, and back.

        Args:
            values: Flat and contiguous, of one length everywhere.
            operation: Called where there are several peers, in those; changes its first argument in place.
            average: Whether machines take part with the mean of their processes or with the sum.
        """
        self.collect(values, average)
        if self.has_peers:
            assert self.peers is not None
            operation(values, self.peers)
        self.hand_out(values)

    @property
    def has_peers(self) -> bool:
        """Whether this process has any to run the algorithm with."""
        return self.peers is not None and self.peers.size > 1

    def collect(self, values: Tensor, average: bool) -> None:
        """Combine ``values`` over this machine; only the process that runs the algorithm has the outcome."""
        if self._node is not None:
            if average:
                values.div_(self._node.size)
            dist.reduce(values, self._node.global_rank(0), group=self._node.group)

    def hand_out(self, values: Tensor) -> None:
        """Give ``values`` of the process that runs the algorithm to all of its machine."""
        if self._node is not None:
            dist.broadcast(values, self._node.global_rank(0), group=self._node.group)


def all_reduce(values: Tensor, peers: Peers, average: bool) -> None:
    """Replace ``values`` by the mean or the sum over ``peers``."""
    if average:
        values.div_(peers.size)  # before, as DistributedDataParallel: a sum of 16-bit numbers could overflow
    dist.all_reduce(values, group=peers.group)


def swap(sent: Tensor, to: int, received: Tensor, source: int, peers: Peers) -> None:
    """Send ``sent`` to peer number ``to``, and take ``received`` from peer number ``source``.

    Where all peers do so at once, each sending and taking one message, no link is shared by two: on a slow network that
    is half as fast again as sending to all at once.
    """
    operations = [
        dist.P2POp(dist.irecv, received, peers.global_rank(source), peers.group),
        dist.P2POp(dist.isend, sent, peers.global_rank(to), peers.group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def all_to_all(sent: Tensor, peers: Peers) -> Tensor:
    """Row ``r`` of ``sent`` goes to peer number ``r``; returns what came, row ``r`` from peer number ``r``."""
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
