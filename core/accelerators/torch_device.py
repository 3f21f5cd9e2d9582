"""The device-neutral accelerator: any device type that torch itself reports, under that type's own name; its memory."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ..errors import BackendError, UnknownNameError, quoted
from ..utilities.torch_private import device_type_names
from .base import Accelerator, call_for_device, device_function

logger = logging.getLogger(__name__)


class TorchDeviceAccelerator(Accelerator):
    """Any device type that torch reports, so that hardware with only a torch backend needs no plugin.

    It calls the functions of ``torch.<name>``, the module that torch has for the device type.

    Args:
        name: The device type, as in ``torch.device(name)``; by default the best one available.

    Raises:
        UnknownNameError: torch has no such device type.
        BackendError: ``name`` is ``None`` and torch reports no device.
    """

    name = "torch"

    def __init__(self, name: str | None = None) -> None:
        present = device_types()
        if name is None and not present:
            raise BackendError("accelerator='torch': torch reports no device on this machine. Use another accelerator.")
        self.name = present[0] if name is None else name
        if not _is_device_type(self.name):
            raise UnknownNameError(
                f"name={name!r}: not a device type that this torch supports. Available: {quoted(present)}; for the CPU "
                "use accelerator='cpu'."
            )

    def is_available(self) -> bool:
        """Return whether torch can use at least one device of the type now. Never raises."""
        return _count(self.name) > 0

    def auto_device_count(self) -> int:
        """Return the number of devices of the type that torch can use."""
        return _count(self.name)

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """Return the devices of the type at these indices."""
        return [torch.device(self.name, index) for index in devices]

    def fork_unsafe_reason(self) -> str | None:
        """Return that torch has initialized the devices in this process: a forked process cannot use them."""
        is_initialized = device_function(self.name, "is_initialized")
        if is_initialized is not None and is_initialized():
            return f"torch.{self.name} is already initialized"
        return None

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Return the memory of ``device``, as far as torch reports it for the type; see :func:`memory_stats`."""
        return memory_stats(device)


def device_types() -> tuple[str, ...]:
    """The device types of which torch can use a device on this machine, except the CPU; best first.

    A backend from outside torch comes first, as in :mod:`torch.accelerator`: it was installed on purpose.
    """
    return tuple(name for name in device_type_names() if name != "cpu" and _count(name) > 0)


def _is_device_type(name: str) -> bool:
    try:
        return name != "cpu" and torch.device(name).type == name
    except RuntimeError:
        return False


def _count(device_type: str) -> int:
    """The number of devices of a type that torch can use; 0 if its module raises an error."""
    is_available = device_function(device_type, "is_available")
    device_count = device_function(device_type, "device_count")
    if is_available is None or device_count is None:
        return 0
    try:
        return int(device_count()) if is_available() else 0
    except Exception:  # a vendor's module can raise anything
        logger.warning("torch.%s: counting devices failed; it is treated as unavailable", device_type, exc_info=True)
        return 0


_FUNCTIONS = {
    "memory_allocated_bytes": ("memory_allocated", "current_allocated_memory"),
    "memory_allocated_peak_bytes": ("max_memory_allocated",),
    "memory_reserved_bytes": ("memory_reserved", "driver_allocated_memory"),
}
"""Statistics, and the names that the function for each has in the modules of different device types."""


def memory_stats(device: str | torch.device) -> dict[str, Any]:
    """The memory of ``device``, which must be in use, for :meth:`core.Accelerator.get_device_stats`.

    ``memory_allocated_bytes`` (by tensors), ``memory_allocated_peak_bytes``, ``memory_reserved_bytes`` (by torch),
    ``memory_free_bytes`` and ``memory_total_bytes``, as far as ``torch.<device type>`` has functions for them.

    Args:
        device: A device with its index.

    Returns:
        Statistics by name.
    """
    device = torch.device(device)
    stats: dict[str, Any] = {}
    for stat, functions in _FUNCTIONS.items():
        value = next((v for f in functions if (v := call_for_device(device, f)) is not None), None)
        if value is not None:
            stats[stat] = value
    free_and_total = call_for_device(device, "mem_get_info")
    if free_and_total is not None:
        stats["memory_free_bytes"], stats["memory_total_bytes"] = free_and_total
    return stats
