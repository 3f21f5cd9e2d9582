"""Process groups that a sharded module keeps from one run to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from torch_hal.strategies.sharding import detach_mesh

__all__ = ["attach", "detach", "divided_parts", "outermost", "reshard"]


def detach(part: FSDPModule) -> None:
    """Release the process groups of ``part``, without its submodules; the shards stay unchanged."""
    part.reshard()
    for info in _own_mesh_infos(part):
        detach_mesh(info.mesh)
        for name in _GROUPS:
            if hasattr(info, name):
                setattr(info, name, None)


def attach(module: nn.Module, mesh: DeviceMesh) -> None:
    """Connect ``module``, sharded in an earlier run over a mesh like ``mesh``, to the process groups of this run.

    The shards know their groups by name, and a mesh that is made in the same way has groups of the same names.
    """
    of_mesh = set(mesh._get_root_mesh()._pg_registry)
    remade: dict[int, DeviceMesh] = {}
    for info in _mesh_infos(module):
        if not set(info.mesh._dim_group_names) <= of_mesh:  # one that reshard_after_forward has formed
            key = id(info.mesh)
            remade[key] = info.mesh = remade.get(key) or DeviceMesh(info.mesh.device_type, info.mesh.mesh)
        if hasattr(info, "shard_process_group"):
            info.shard_process_group = info.mesh.get_group(info.shard_mesh_dim)
        if hasattr(info, "replicate_process_group"):
            info.replicate_process_group = info.mesh.get_group(info.replicate_mesh_dim)


def reshard(module: nn.Module) -> None:
    """Reshard all parameters of ``module``, also those that the last forward pass left unsharded."""
    for part in divided_parts(module):
        part.reshard()


def divided_parts(module: nn.Module) -> Iterator[FSDPModule]:
    """``module`` and those of its submodules that are sharded separately."""
    return (part for part in module.modules() if isinstance(part, FSDPModule))


def outermost(module: nn.Module) -> Iterator[FSDPModule]:
    """Of :func:`divided_parts`, those that are in no other one."""
    if isinstance(module, FSDPModule):
        yield module
        return
    for child in module.children():
        yield from outermost(child)


_GROUPS = ("shard_process_group", "replicate_process_group", "reduce_scatter_process_group")


def _mesh_infos(module: nn.Module) -> Iterator[Any]:
    """Each of FSDP's records of a mesh, once."""
    infos = {id(info): info for part in divided_parts(module) for info in _own_mesh_infos(part)}
    yield from infos.values()


def _own_mesh_infos(part: FSDPModule) -> Iterator[Any]:
    state: Any = part._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        groups = state._fsdp_param_groups
    else:  # torch 2.11 has one for a module, or none
        groups = [state._fsdp_param_group] if state._fsdp_param_group else []
    for group in groups:
        for info in (group.mesh_info, group.post_forward_mesh_info):
            if info is not None:
                yield info
