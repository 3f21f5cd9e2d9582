"""Ascend NPUs in torch-hal. Importing this package does not import torch."""

from __future__ import annotations

from torch_hal.utilities.lazy import lazy_names

TYPE_CHECKING = False  # detection imports this module, and should import little else
if TYPE_CHECKING:
    from torch_hal_npu.accelerator import NPUAccelerator

__all__ = ["NPUAccelerator"]

__getattr__, __dir__ = lazy_names(__name__, {"NPUAccelerator": "torch_hal_npu.accelerator"})
