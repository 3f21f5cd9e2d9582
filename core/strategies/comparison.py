"""Comparing what processes give to a collective."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["by_rank", "describe_tensor"]


def describe_tensor(tensor: Tensor) -> str:
    """Shape and dtype, and the layout of a tensor that is not dense: ``(2, 3) float32``."""
    facts = f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    return facts if tensor.layout is torch.strided else f"{facts} {str(tensor.layout).removeprefix('torch.')}"


def by_rank(facts: Sequence[str]) -> str:
    """Which ranks gave what: ``ranks 0, 2: (3,) float32; rank 1: (2,) float32``.

    Args:
        facts: What each rank gave, by rank.
    """
    ranks: dict[str, list[str]] = {}
    for rank, fact in enumerate(facts):
        ranks.setdefault(fact, []).append(str(rank))
    return "; ".join(
        f"{'rank' if len(same) == 1 else 'ranks'} {', '.join(same)}: {fact}" for fact, same in ranks.items()
    )
