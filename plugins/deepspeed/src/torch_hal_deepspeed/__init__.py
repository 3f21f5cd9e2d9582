"""DeepSpeed in torch-hal: its engine drives backward and step, and divides the model among processes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_hal_deepspeed.checkpoints import DeepSpeedCheckpointIO
    from torch_hal_deepspeed.consolidate import consolidate
    from torch_hal_deepspeed.environment import DeepSpeedEnvironment
    from torch_hal_deepspeed.strategy import DeepSpeedStrategy

__all__ = ["DeepSpeedCheckpointIO", "DeepSpeedEnvironment", "DeepSpeedStrategy", "consolidate"]

_MODULES = {
    "DeepSpeedCheckpointIO": "checkpoints",
    "DeepSpeedEnvironment": "environment",
    "DeepSpeedStrategy": "strategy",
    "consolidate": "consolidate",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
