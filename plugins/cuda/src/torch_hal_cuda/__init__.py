"""NVIDIA's and AMD's GPUs in torch-hal. Importing this package imports no torch."""

from __future__ import annotations

TYPE_CHECKING = False  # detection imports this module, and should import nothing else
if TYPE_CHECKING:
    from typing import Any

    from torch_hal_cuda.accelerator import CUDAAccelerator
    from torch_hal_cuda.pick import find_usable_cuda_devices

__all__ = ["CUDAAccelerator", "find_usable_cuda_devices"]

_HOMES = {
    "CUDAAccelerator": "torch_hal_cuda.accelerator",
    "find_usable_cuda_devices": "torch_hal_cuda.pick",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
