"""State of the devices, of which a process works on one: the first that it sees, under the index 0."""

from __future__ import annotations

import os

import torch
from stand_ins import bound, recorded

from habana_frameworks.torch.core import _module
from habana_frameworks.torch.hpu import random
from habana_frameworks.torch.hpu.random import initial_seed

__all__ = [
    "current_device",
    "device_count",
    "get_device_name",
    "initial_seed",
    "is_available",
    "is_initialized",
    "max_memory_allocated",
    "memory_allocated",
    "memory_stats",
    "random",
    "reset_peak_memory_stats",
    "set_device",
    "synchronize",
]

is_available = recorded("hpu.is_available")(_module.is_available)
is_initialized = recorded("hpu.is_initialized")(_module.is_initialized)
device_count = recorded("hpu.device_count")(_module.device_count)
set_device = recorded("hpu.set_device")(_module.set_device)
memory_allocated = recorded("hpu.memory_allocated")(_module.memory_allocated)
max_memory_allocated = recorded("hpu.max_memory_allocated")(_module.max_memory_allocated)
reset_peak_memory_stats = recorded("hpu.reset_peak_memory_stats")(_module.reset_peak_memory_stats)


@recorded("hpu.current_device")
def current_device() -> int:
    """Take the process's device into use, that of the module it is bound to; its index."""
    if not _module.is_initialized():
        bound.append(os.environ.get("HLS_MODULE_ID", ""))
    _module.init()
    return _module.current_device()


@recorded("hpu.synchronize")
def synchronize() -> None:
    """Wait until the device has done its work."""
    _module.synchronize()


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
