"""Strategies with one process for all devices of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_cuda.strategies.ddp2 import DDP2Strategy
    from torch_hal_cuda.strategies.dp import DataParallelStrategy

__all__ = ["DDP2Strategy", "DataParallelStrategy"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DDP2Strategy": "torch_hal_cuda.strategies.ddp2",
        "DataParallelStrategy": "torch_hal_cuda.strategies.dp",
    },
)
