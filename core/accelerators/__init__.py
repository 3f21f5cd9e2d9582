"""Accelerators: kinds of hardware.

Importing this package imports no torch, since :mod:`core.accelerators.detect` lies in it; asking for a class does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.accelerators.base import CAPABILITIES, Accelerator
    from core.accelerators.cpu import CPUAccelerator
    from core.accelerators.devices import parse_devices
    from core.accelerators.torch_device import TorchDeviceAccelerator

__all__ = ["CAPABILITIES", "Accelerator", "CPUAccelerator", "TorchDeviceAccelerator", "parse_devices"]

_HOMES = {
    "CAPABILITIES": "core.accelerators.base",
    "Accelerator": "core.accelerators.base",
    "CPUAccelerator": "core.accelerators.cpu",
    "TorchDeviceAccelerator": "core.accelerators.torch_device",
    "parse_devices": "core.accelerators.devices",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
