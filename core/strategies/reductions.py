"""The reductions, one table with all that is known of each; and dtypes that a process group cannot send."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ConfigurationError, nearest, quoted
from ..utilities.objects import sendable


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
            f"reduction={reduction!r}: the tensor has dtype {dtype}, which supports only the mean and the sum. "
            "Reduce torch.view_as_real(tensor), or its abs()."
        )
    if dtype is torch.uint64 and reduction != "mean":
        raise ConfigurationError(
            f"reduction={reduction!r}: the tensor has dtype {dtype}, in which torch does not compute. Convert it to "
            "torch.int64."
        )
    return REDUCTIONS[reduction]


def copy_for_reduction(tensor: Tensor, device: torch.device, reduction: Reduction) -> Tensor:
    """A contiguous copy of ``tensor`` on ``device``.

    In float32 are integers that are to be averaged, and any float8; in int64 truth values that are to be counted.
    """
    is_fractional, dtype = tensor.is_floating_point() or tensor.is_complex(), tensor.dtype
    if (reduction.is_mean and not is_fractional) or _is_float8(dtype):
        dtype = torch.float32
    elif dtype is torch.bool and reduction.operation not in (dist.ReduceOp.MIN, dist.ReduceOp.MAX):
        dtype = torch.int64
    return sendable(tensor.detach().to(device, dtype, copy=True))


def as_result(reduced: Tensor, dtype: torch.dtype) -> Tensor:
    """What was made of a :func:`copy_for_reduction` of a tensor of ``dtype``: a float8 again if it was one."""
    return reduced.to(dtype) if _is_float8(dtype) else reduced


def _is_float8(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize == 1


_SENT_BY_ALL = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)
"""The dtypes that every backend of ``torch.distributed`` sends."""


_REDUCED_AS = MappingProxyType(dict.fromkeys((torch.int16, torch.uint16, torch.uint32), torch.int64))


def as_sent(tensor: Tensor) -> Tensor:
    """``tensor``, or a view of its bytes if not every backend sends its dtype.

    Args:
        tensor: Contiguous.
    """
    return tensor if tensor.dtype in _SENT_BY_ALL else tensor.detach().view(-1).view(torch.uint8)


def as_reduced(tensor: Tensor) -> Tensor:
    """``tensor``, or a copy in a dtype in which every backend computes, from which the result is converted back."""
    return tensor.to(_REDUCED_AS[tensor.dtype]) if tensor.dtype in _REDUCED_AS else tensor


def check_sendable(strategy: str, kind: str, named: Iterable[tuple[str, Tensor]], device: torch.device) -> None:
    """Reject tensors that the process group cannot send as they are; every process calls it with the same.

    Args:
        strategy: The name of the strategy, for the message.
        kind: What the tensors are: ``"buffers"`` or ``"parameters"``.
        named: The tensors by name.
        device: The device from which they are sent.

    Raises:
        ConfigurationError: The backend rejects the dtype of one of them.
    """
    by_dtype: dict[torch.dtype, list[str]] = {}
    for name, tensor in named:
        if tensor.dtype not in _SENT_BY_ALL:
            by_dtype.setdefault(tensor.dtype, []).append(name)
    for dtype, names in by_dtype.items():
        try:
            # torch does not say which dtypes a backend sends, so it is tried.
            dist.broadcast(torch.empty(1, dtype=dtype, device=device), 0)
        except (RuntimeError, TypeError, ValueError) as error:  # each backend has its own
            raise ConfigurationError(
                f"strategy={strategy!r}: the {kind} {quoted(names)} have dtype {dtype}, which the process group "
                f"backend {dist.get_backend()!r} cannot send. Give them another dtype, such as torch.int32 for integers"
                + ("; or set broadcast_buffers=False if each process may keep its own." if kind == "buffers" else ".")
            ) from error
