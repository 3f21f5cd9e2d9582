"""Who this process is: the only one."""

from __future__ import annotations

from stand_ins import recorded

from torch_xla import _module

__all__ = [
    "addressable_device_count",
    "device_type",
    "global_ordinal",
    "global_runtime_device_count",
    "local_ordinal",
    "process_count",
    "process_index",
    "world_size",
]


@recorded("xr.device_type")
def device_type() -> str:
    """What the devices really are."""
    return "CPU"


@recorded("xr.world_size")
def world_size() -> int:
    """How many processes there are."""
    return 1


@recorded("xr.global_ordinal")
def global_ordinal() -> int:
    """The number of this process among all."""
    return 0


@recorded("xr.local_ordinal")
def local_ordinal() -> int:
    """The number of this process on this machine."""
    return 0


process_index = recorded("xr.process_index")(lambda: 0)
process_count = recorded("xr.process_count")(lambda: 1)
global_runtime_device_count = recorded("xr.global_runtime_device_count")(_module.device_count)
addressable_device_count = recorded("xr.addressable_device_count")(_module.device_count)
