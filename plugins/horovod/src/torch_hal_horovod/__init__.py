"""Horovod in torch-hal: strategy and cluster environment ``horovod``.

The public names are imported when they are first asked for, since finding out who started a process needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_hal_horovod.environment import HorovodEnvironment
    from torch_hal_horovod.strategy import HorovodStrategy

__all__ = ["HorovodEnvironment", "HorovodStrategy"]

_HOMES = {"HorovodEnvironment": "environment", "HorovodStrategy": "strategy"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
