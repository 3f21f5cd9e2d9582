"""Gradients averaged in 8 bits."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from torch_hal_bagua.algorithms.base import Algorithm, GradientBucket
from torch_hal_bagua.communication import Communicator, Peers, all_to_all
from torch_hal_bagua.options import boolean
from torch_hal_bagua.quantization import dequantize, quantize

__all__ = ["ByteGrad", "compressed_all_reduce"]


class ByteGrad(Algorithm):
    """Averages gradients over all processes and sends them in 8 bits. All processes end with the same bits.

    Args:
        hierarchical: Average within each machine in full precision first, then over one process of each in bytes.
        average: Whether to average or to sum.
    """

    name = "bytegrad"
    compresses = True

    def __init__(self, hierarchical: bool = True, average: bool = True) -> None:
        self.hierarchical = boolean("hierarchical", hierarchical)
        self.average = boolean("average", average)

    @property
    def reduces_itself(self) -> bool:
        """Always true."""
        return True

    def reduce(self, bucket: GradientBucket, communicator: Communicator) -> None:
        """See :meth:`Algorithm.reduce`."""
        operation = partial(compressed_all_reduce, average=self.average)
        communicator.among_peers(bucket.values, operation, average=self.average)


def compressed_all_reduce(values: Tensor, peers: Peers, average: bool) -> None:
    """Replace ``values`` by the mean or the sum over ``peers``; each peer computes one part and sends it to all.

    For ``k`` values each peer sends about ``2k`` bytes, where an allreduce of float32 sends ``8k``.

    Args:
        values: Flat; changed in place.
        peers: At least two.
        average: Whether to average or to sum.
    """
    size = peers.size
    parts = pad(values, (0, -values.numel() % size)).view(size, -1)
    messages = quantize(parts)
    own = dequantize(all_to_all(messages, peers)).sum(dim=0, keepdim=True)
    if average:
        own.div_(size)
    gathered = torch.empty_like(messages)
    dist.all_gather(list(gathered), quantize(own)[0], group=peers.group)
    values.copy_(dequantize(gathered).view(-1)[: values.numel()])
