"""The memory of a device, as torch's module for its type reports it."""

from __future__ import annotations

from typing import Any

import torch

from .torch_module import call_for_device

__all__ = ["memory_stats"]

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
