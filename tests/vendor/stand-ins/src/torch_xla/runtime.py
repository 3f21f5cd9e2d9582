"""Who this process is, and what its devices are."""

from __future__ import annotations

from stand_ins import recorded

from torch_xla import _module, processes

__all__ = [
    "addressable_device_count",
    "device_type",
    "get_master_ip",
    "get_num_cached_compilation_graph",
    "global_ordinal",
    "global_runtime_device_count",
    "host_index",
    "is_spmd",
    "local_device_count",
    "local_ordinal",
    "process_count",
    "process_index",
    "use_spmd",
    "world_size",
]


class _Mode:
    is_spmd = False


@recorded("xr.device_type")
def device_type() -> str:
    """What the devices really are."""
    return "CPU"


world_size = recorded("xr.world_size")(processes.size)
process_count = recorded("xr.process_count")(processes.size)
local_device_count = recorded("xr.local_device_count")(processes.size)
global_ordinal = recorded("xr.global_ordinal")(processes.rank)
local_ordinal = recorded("xr.local_ordinal")(processes.rank)
process_index = recorded("xr.process_index")(processes.rank)
global_runtime_device_count = recorded("xr.global_runtime_device_count")(_module.device_count)
addressable_device_count = recorded("xr.addressable_device_count")(_module.device_count)


@recorded("xr.host_index")
def host_index() -> int:
    """The number of this machine."""
    return 0


@recorded("xr.get_master_ip")
def get_master_ip() -> str:
    """The address of the first machine."""
    return "127.0.0.1"


@recorded("xr.get_num_cached_compilation_graph")
def get_num_cached_compilation_graph() -> int:
    """How many graphs were compiled."""
    return 1


@recorded("xr.use_spmd")
def use_spmd(auto: bool = False) -> None:
    """From now on, the devices are one to this process."""
    _Mode.is_spmd = True


@recorded("xr.is_spmd")
def is_spmd() -> bool:
    """Whether they are."""
    return _Mode.is_spmd
