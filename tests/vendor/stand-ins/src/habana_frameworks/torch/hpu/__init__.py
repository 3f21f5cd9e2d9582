"""State of the devices."""

from __future__ import annotations

import torch
from stand_ins import recorded

from habana_frameworks.torch.core import _module
from habana_frameworks.torch.hpu import random

__all__ = [
    "current_device",
    "device_count",
    "get_device_name",
    "is_available",
    "max_memory_allocated",
    "memory_allocated",
    "memory_stats",
    "random",
    "reset_peak_memory_stats",
    "set_device",
    "synchronize",
]

is_available = recorded("hpu.is_available")(_module.is_available)
device_count = recorded("hpu.device_count")(_module.device_count)
current_device = recorded("hpu.current_device")(_module.current_device)
set_device = recorded("hpu.set_device")(_module.set_device)
synchronize = recorded("hpu.synchronize")(_module.synchronize)
memory_allocated = recorded("hpu.memory_allocated")(_module.memory_allocated)
max_memory_allocated = recorded("hpu.max_memory_allocated")(_module.max_memory_allocated)
reset_peak_memory_stats = recorded("hpu.reset_peak_memory_stats")(_module.reset_peak_memory_stats)


@recorded("hpu.get_device_name")
def get_device_name(device: torch.device | int | str | None = None) -> str:
    """The generation of the card."""
    return "GAUDI2"


@recorded("hpu.memory_stats")
def memory_stats(device: torch.device | int | str | None = None) -> dict[str, int]:
    """Memory in bytes, under the library's names."""
    _, total = _module.mem_get_info(device)
    return {
        "Limit": total,
        "InUse": _module.memory_allocated(device),
        "MaxInUse": _module.max_memory_allocated(device),
    }
