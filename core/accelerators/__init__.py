"""Accelerators: kinds of hardware."""

from core.accelerators.base import Accelerator
from core.accelerators.cpu import CPUAccelerator
from core.accelerators.devices import parse_devices
from core.accelerators.torch_device import TorchDeviceAccelerator

__all__ = ["Accelerator", "CPUAccelerator", "TorchDeviceAccelerator", "parse_devices"]
