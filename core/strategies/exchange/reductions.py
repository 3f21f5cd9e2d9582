"""The reductions: one table with all that is known of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import ConfigurationError, nearest, quoted
from ...utilities.objects import sendable

__all__ = ["REDUCTIONS", "Reduction", "as_result", "check_reduction", "copy_for_reduction"]


@attrs.frozen
class Reduction:
    """How tensors are combined elementwise over processes."""

    operation: Any
    """The ``torch.distributed.ReduceOp``."""
    combine: Callable[[Tensor], Tensor]
    """The reduction of tensors that are stacked along the first dimension, for engines without such an operation."""
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


def check_reduction(reduction: str, dtype: torch.dtype = torch.float32) -> Reduction:
    """The entry of :data:`REDUCTIONS` with this name.

    Args:
        reduction: The name.
        dtype: That of the tensors.

    Raises:
        ConfigurationError: There is none, or it is not possible with ``dtype``.
    """
    if reduction not in REDUCTIONS:
        raise ConfigurationError(
            f"reduction={reduction!r}: unknown. Valid: {quoted(REDUCTIONS)}.{nearest(str(reduction), REDUCTIONS)}"
        )
    if dtype.is_complex and reduction not in ("mean", "sum"):
        raise ConfigurationError(
            f"reduction={reduction!r}: the tensor has dtype {dtype}, of which only the mean and the sum are reduced. "
            "Reduce torch.view_as_real(tensor), or its abs()."
        )
    if dtype is torch.uint64 and reduction != "mean":
        raise ConfigurationError(
            f"reduction={reduction!r}: the tensor has dtype {dtype}, in which torch does not compute. Convert it to "
            "torch.int64."
        )
    return REDUCTIONS[reduction]


def copy_for_reduction(tensor: Tensor, device: torch.device, *, is_mean: bool) -> Tensor:
    """A contiguous copy of ``tensor`` on ``device``: in float32 integers that are to be averaged, and any float8."""
    is_fractional = tensor.is_floating_point() or tensor.is_complex()
    dtype = torch.float32 if (is_mean and not is_fractional) or _is_float8(tensor.dtype) else tensor.dtype
    return sendable(tensor.detach().to(device, dtype, copy=True))


def as_result(reduced: Tensor, dtype: torch.dtype) -> Tensor:
    """What was made of a :func:`copy_for_reduction` of a tensor of ``dtype``: a float8 again if it was one."""
    return reduced.to(dtype) if _is_float8(dtype) else reduced


def _is_float8(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1
