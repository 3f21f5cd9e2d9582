"""Strategies in which one process drives all devices of a machine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_hal_cuda.strategies.ddp2 import DDP2Strategy
    from torch_hal_cuda.strategies.dp import DataParallelStrategy

__all__ = ["DDP2Strategy", "DataParallelStrategy"]

_HOMES = {
    "DDP2Strategy": "torch_hal_cuda.strategies.ddp2",
    "DataParallelStrategy": "torch_hal_cuda.strategies.dp",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
