"""The device-neutral accelerator: any device type that torch itself reports, under that type's own name."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch._C._autograd import DeviceType

from core.accelerators.base import Accelerator
from core.accelerators.modules import call_for_device, device_function
from core.errors import BackendError, UnknownNameError, quoted

__all__ = ["TorchDeviceAccelerator", "device_types"]

logger = logging.getLogger(__name__)

_MEMORY_STATS = {
    "memory_allocated_bytes": ("memory_allocated", "current_allocated_memory"),
    "memory_allocated_peak_bytes": ("max_memory_allocated",),
    "memory_reserved_bytes": ("memory_reserved", "driver_allocated_memory"),
}
"""Statistics, and the functions that give them: modules of devices don't all use the same names."""


class TorchDeviceAccelerator(Accelerator):
    """Any device type that torch reports, so that hardware with only a torch backend works with no plugin at all.

    Everything is asked of ``torch.<name>``, the module that torch holds for the type.

    Args:
        name: The device type, as in ``torch.device(name)``; the best one present where none is given.

    Raises:
        UnknownNameError: torch knows no such type of device.
        BackendError: No name is given, and torch reports no device.
    """

    name = "torch"

    def __init__(self, name: str | None = None) -> None:
        present = device_types()
        if name is None and not present:
            raise BackendError("name=None: torch reports no device here. Valid: another accelerator.")
        self.name = present[0] if name is None else name
        if not _is_device_type(self.name):
            raise UnknownNameError(
                f"name={name!r}: no device type of this torch. Valid here: {quoted(present)}; the host's CPU has an "
                "accelerator of its own."
            )

    def is_available(self) -> bool:
        """Whether torch can use at least one device of the type here and now. Never raises."""
        return _count(self.name) > 0

    def auto_device_count(self) -> int:
        """How many devices of the type torch can use."""
        return _count(self.name)

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """The devices of the type at these indices."""
        return [torch.device(self.name, index) for index in devices]

    def fork_unsafe_reason(self) -> str | None:
        """That torch has initialized the devices in this process: they are lost to a forked one."""
        is_initialized = device_function(self.name, "is_initialized")
        if is_initialized is not None and is_initialized():
            return f"torch.{self.name} is initialized in it"
        return None

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Memory of ``device``, as far as torch tells it for the type.

        ``memory_allocated_bytes`` (by tensors), ``memory_allocated_peak_bytes``, ``memory_reserved_bytes`` (by torch),
        ``memory_free_bytes`` and ``memory_total_bytes``.
        """
        device = torch.device(device)
        stats: dict[str, Any] = {}
        for stat, functions in _MEMORY_STATS.items():
            value = next((v for f in functions if (v := call_for_device(device, f)) is not None), None)
            if value is not None:
                stats[stat] = value
        free_and_total = call_for_device(device, "mem_get_info")
        if free_and_total is not None:
            stats["memory_free_bytes"], stats["memory_total_bytes"] = free_and_total
        return stats


def device_types() -> tuple[str, ...]:
    """The device types of which torch can use a device here, beside the host's own; best first.

    A backend from outside torch comes first, as in :mod:`torch.accelerator`: someone installed it on purpose.
    """
    names = (torch._C._get_privateuse1_backend_name(), *map(str.lower, DeviceType.__members__))
    return tuple(name for name in names if name != "cpu" and _count(name) > 0)


def _is_device_type(name: str) -> bool:
    try:
        return name != "cpu" and torch.device(name).type == name
    except RuntimeError:
        return False


def _count(device_type: str) -> int:
    """How many devices of a type torch can use; none where its module can't be asked."""
    is_available = device_function(device_type, "is_available")
    device_count = device_function(device_type, "device_count")
    if is_available is None or device_count is None:
        return 0
    try:
        return int(device_count()) if is_available() else 0
    except Exception:  # the module is a vendor's, and raises what it likes
        logger.warning("torch.%s can't tell whether it is available", device_type, exc_info=True)
        return 0
