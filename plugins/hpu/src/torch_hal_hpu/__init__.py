"""Intel Gaudi in torch-hal. Importing this package imports no torch."""

from __future__ import annotations

TYPE_CHECKING = False  # detection imports this module, and should import nothing else
if TYPE_CHECKING:
    from typing import Any

    from torch_hal_hpu.accelerator import HPUAccelerator
    from torch_hal_hpu.strategies import HPUParallelStrategy, SingleHPUStrategy

__all__ = ["HPUAccelerator", "HPUParallelStrategy", "SingleHPUStrategy"]

_HOMES = {
    "HPUAccelerator": "torch_hal_hpu.accelerator",
    "HPUParallelStrategy": "torch_hal_hpu.strategies",
    "SingleHPUStrategy": "torch_hal_hpu.strategies",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
