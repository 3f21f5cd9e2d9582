"""Objects as bytes, tensors of any dtype included: torch pickles those of float8 and uint16, but cannot read them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["by_rank", "describe_tensor", "pickled", "unpickled"]


_READ = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    }
)
"""The dtypes whose tensors torch's own unpickling reads."""


def pickled(obj: Any) -> bytes:
    """``obj`` for :func:`unpickled`; raises what its own pickling raises."""
    file = io.BytesIO()
    _Pickler(file).dump(obj)
    return file.getvalue()


def unpickled(payload: bytes) -> Any:
    """What :func:`pickled` was given, from a process of the same run."""
    return pickle.loads(payload)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) not in (Tensor, nn.Parameter) or obj.dtype in _READ or obj.is_quantized:
            return NotImplemented
        if obj.layout is not torch.strided or obj.is_meta:
            return NotImplemented
        content = obj.detach().contiguous().view(-1).view(torch.uint8)
        return _restored, (content, obj.dtype, tuple(obj.shape), type(obj), obj.requires_grad)


def _restored(content: Tensor, dtype: torch.dtype, shape: tuple[int, ...], kind: Any, requires_grad: bool) -> Tensor:
    tensor = content.view(dtype).view(shape)
    restored: Tensor = kind(tensor, requires_grad) if kind is nn.Parameter else tensor.requires_grad_(requires_grad)
    return restored


def describe_tensor(tensor: Tensor) -> str:
    """Shape and dtype, and the layout of a tensor that is not dense: ``(2, 3) float32``."""
    facts = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    return facts if tensor.layout is torch.strided else f"{facts} {str(tensor.layout).removeprefix('torch.')}"


def by_rank(facts: Sequence[str], given_by: Sequence[int] | None = None) -> str:
    """Which ranks gave what: ``ranks 0, 2: (3,) float32; rank 1: (2,) float32``.

    Args:
        facts: What each rank gave, by rank.
        given_by: The ranks; all of the run unless given.
    """
    ranks: dict[str, list[str]] = {}
    for rank, fact in zip(range(len(facts)) if given_by is None else given_by, facts, strict=True):
        ranks.setdefault(fact, []).append(str(rank))
    return "; ".join(
        f"{'rank' if len(same) == 1 else 'ranks'} {', '.join(same)}: {fact}" for fact, same in ranks.items()
    )
