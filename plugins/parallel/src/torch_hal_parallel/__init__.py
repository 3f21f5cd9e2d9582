"""Tensor, pipeline and context parallelism on one mesh, in torch-hal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_parallel.context import positions
    from torch_hal_parallel.strategy import ModelParallelStrategy

__all__ = ["ModelParallelStrategy", "positions"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ModelParallelStrategy": "torch_hal_parallel.strategy",
        "positions": "torch_hal_parallel.context",
    },
)
