"""Accelerators: the kinds of hardware.

Importing this package does not import torch; using a class does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..utilities.lazy import lazy_names

if TYPE_CHECKING:
    from .base import CAPABILITIES, Accelerator
    from .cpu import CPUAccelerator
    from .devices import parse_devices
    from .torch_device import TorchDeviceAccelerator, memory_stats

__all__ = ["CAPABILITIES", "Accelerator", "CPUAccelerator", "TorchDeviceAccelerator", "memory_stats", "parse_devices"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CAPABILITIES": "torch_hal.accelerators.base",
        "Accelerator": "torch_hal.accelerators.base",
        "CPUAccelerator": "torch_hal.accelerators.cpu",
        "TorchDeviceAccelerator": "torch_hal.accelerators.torch_device",
        "memory_stats": "torch_hal.accelerators.torch_device",
        "parse_devices": "torch_hal.accelerators.devices",
    },
)
