"""Intel GPUs in torch-hal. Importing this package does not import torch."""

from __future__ import annotations

from torch_hal.utilities.lazy import lazy_names

TYPE_CHECKING = False  # detection imports this module, and should import little else
if TYPE_CHECKING:
    from torch_hal_xpu.accelerator import XPUAccelerator

__all__ = ["XPUAccelerator"]

__getattr__, __dir__ = lazy_names(__name__, {"XPUAccelerator": "torch_hal_xpu.accelerator"})
