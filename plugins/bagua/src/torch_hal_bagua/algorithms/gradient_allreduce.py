"""Gradients averaged in full precision."""

from __future__ import annotations

from functools import partial

from torch_hal_bagua.algorithms.base import Algorithm, GradientBucket
from torch_hal_bagua.communication import Communicator, all_reduce
from torch_hal_bagua.options import boolean

__all__ = ["GradientAllReduce"]


class GradientAllReduce(Algorithm):
    """Gradients averaged over all processes: with default options the same as DistributedDataParallel, bit for bit.

    Args:
        hierarchical: Reduce within each machine first, then over one process of each.
        average: Whether to average or to sum.
    """

    name = "gradient_allreduce"

    def __init__(self, hierarchical: bool = False, average: bool = True) -> None:
        self.hierarchical = boolean("hierarchical", hierarchical)
        self.average = boolean("average", average)

    @property
    def reduces_itself(self) -> bool:
        """True if an option needs more than DistributedDataParallel does."""
        return self.hierarchical or not self.average

    def reduce(self, bucket: GradientBucket, communicator: Communicator) -> None:
        """See :meth:`Algorithm.reduce`."""
        operation = partial(all_reduce, average=self.average)
        communicator.among_peers(bucket.values, operation, average=self.average)
