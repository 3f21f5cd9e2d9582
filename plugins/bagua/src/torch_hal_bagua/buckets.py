"""Flat buffers that hold many parameters, so that one collective can exchange them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["WeightBucket", "weight_buckets"]

_MIB = 1024 * 1024


class WeightBucket:
    """Parameters of one dtype and device, and a flat buffer of their total length.

    Args:
        parameters: At least one parameter.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters: list[Tensor] = list(parameters)
        first = self.parameters[0]
        self.buffer = torch.empty(sum(p.numel() for p in self.parameters), dtype=first.dtype, device=first.device)
        """The flat buffer; its contents are up to the caller."""
        parts = torch.split(self.buffer, [p.numel() for p in self.parameters])
        self._views = [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]

    @torch.no_grad()
    def read(self) -> Tensor:
        """Copy the parameters into the buffer; returns the buffer."""
        torch._foreach_copy_(self._views, self.parameters)
        return self.buffer

    @torch.no_grad()
    def write(self) -> None:
        """Copy the buffer into the parameters."""
        torch._foreach_copy_(self.parameters, self._views)

    @torch.no_grad()
    def add(self) -> None:
        """Add the buffer to the parameters."""
        torch._foreach_add_(self.parameters, self._views)


def weight_buckets(parameters: Iterable[nn.Parameter], cap_mb: float) -> list[WeightBucket]:
    """Group the trainable parameters, the last one first, into buckets of one dtype with at most ``cap_mb`` MiB each.

    Args:
        parameters: The parameters of one module, on one device.
        cap_mb: A larger parameter gets its own bucket.
    """
    open_buckets: dict[torch.dtype, list[nn.Parameter]] = {}
    closed: list[list[nn.Parameter]] = []
    for parameter in reversed([p for p in parameters if p.requires_grad]):
        bucket = open_buckets.setdefault(parameter.dtype, [])
        if bucket and _bytes_of([*bucket, parameter]) > cap_mb * _MIB:
            closed.append(bucket)
            bucket = open_buckets[parameter.dtype] = []
        bucket.append(parameter)
    return [WeightBucket(bucket) for bucket in [*closed, *open_buckets.values()]]


def _bytes_of(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)
