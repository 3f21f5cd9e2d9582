"""The reductions: one table with all that is known of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from core.errors import ConfigurationError, nearest, quoted

__all__ = ["REDUCTIONS", "Reduction", "check_reduction", "copy_for_reduction"]


@attrs.frozen
class Reduction:
    """How tensors are combined elementwise over processes."""

    operation: Any
    """The ``torch.distributed.ReduceOp``."""
    combine: Callable[[Tensor], Tensor]
    """The same for tensors that are stacked along the first dimension, for engines without such an operation."""
    is_mean: bool = False
    """Whether the result is divided by the world size afterwards."""


REDUCTIONS: Mapping[str, Reduction] = MappingProxyType(
    {
        "mean": Reduction(dist.ReduceOp.SUM, lambda stacked: stacked.sum(0), is_mean=True),
        "sum": Reduction(dist.ReduceOp.SUM, lambda stacked: stacked.sum(0)),
        "min": Reduction(dist.ReduceOp.MIN, lambda stacked: stacked.amin(0)),
        "max": Reduction(dist.ReduceOp.MAX, lambda stacked: stacked.amax(0)),
        "product": Reduction(dist.ReduceOp.PRODUCT, lambda stacked: stacked.prod(0)),
    }
)
"""The reductions that :meth:`core.Strategy.reduce` takes, by name."""


def check_reduction(reduction: str) -> Reduction:
    """The entry of :data:`REDUCTIONS` with this name.

    Raises:
        ConfigurationError: There is none.
    """
    if reduction not in REDUCTIONS:
        raise ConfigurationError(
            f"reduction={reduction!r}: unknown. Valid: {quoted(REDUCTIONS)}.{nearest(str(reduction), REDUCTIONS)}"
        )
    return REDUCTIONS[reduction]


def copy_for_reduction(tensor: Tensor, device: torch.device, *, is_mean: bool) -> Tensor:
    """A contiguous copy of ``tensor`` on ``device``; of integers in float32 if they are to be averaged."""
    is_fractional = tensor.is_floating_point() or tensor.is_complex()
    dtype = torch.float32 if is_mean and not is_fractional else tensor.dtype
    return tensor.detach().to(device, dtype, copy=True).contiguous()
