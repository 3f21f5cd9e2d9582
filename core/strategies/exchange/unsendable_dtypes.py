"""Tensors whose dtype a process group cannot send, such as int16 with gloo: as bytes, or refused by name."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import ConfigurationError, quoted

__all__ = ["as_reduced", "as_sent", "check_sendable"]

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
    """Refuse tensors that the process group cannot send as they are; every process calls it with the same.

    Args:
        strategy: The name of the strategy, for the message.
        kind: What the tensors are: ``"buffers"`` or ``"parameters"``.
        named: The tensors by name.
        device: The device from which they are sent.

    Raises:
        ConfigurationError: The backend refuses the dtype of one of them.
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
