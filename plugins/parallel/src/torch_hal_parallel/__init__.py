"""Tensor, pipeline and context parallelism on one mesh, and DiLoCo, in torch-hal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_parallel.context import positions
    from torch_hal_parallel.diloco import DiLoCoStrategy
    from torch_hal_parallel.script_settings import ParallelismConfig
    from torch_hal_parallel.strategy import ModelParallelStrategy

__all__ = ["DiLoCoStrategy", "ModelParallelStrategy", "ParallelismConfig", "positions"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DiLoCoStrategy": "torch_hal_parallel.diloco",
        "ModelParallelStrategy": "torch_hal_parallel.strategy",
        "ParallelismConfig": "torch_hal_parallel.script_settings",
        "positions": "torch_hal_parallel.context",
    },
)
