"""What FSDP knows of a sharded module: process groups, from one run to the next, and gradients that are not reduced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from torch_hal.strategies.sharding import detach_mesh

__all__ = ["attach", "detach", "divided_parts", "load_open_gradients", "open_gradients", "outermost", "reshard"]


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


def open_gradients(module: nn.Module) -> list[dict[str, Tensor]]:
    """What each parameter has between two batches of an accumulation: a whole gradient of this process, and a shard."""
    found: list[dict[str, Tensor]] = []
    for parameter in _parameters(module):
        whole, shard = parameter.unsharded_accumulated_grad, parameter.sharded_param.grad
        if whole is None and hasattr(parameter, "_unsharded_param"):  # where it has the dtype of the reduction already
            whole = parameter._unsharded_param.grad
        gradients = {"whole": whole, "shard": None if shard is None else shard.to_local()}
        found.append({name: gradient for name, gradient in gradients.items() if gradient is not None})
    return found


def load_open_gradients(module: nn.Module, state: list[dict[str, Tensor]], device: torch.device) -> None:
    """Restore what :func:`open_gradients` returned. FSDP adds the next whole gradient to what is set here."""
    for parameter, gradients in zip(_parameters(module), state, strict=True):
        whole, shard = gradients.get("whole"), gradients.get("shard")
        parameter.unsharded_accumulated_grad = None if whole is None else whole.to(device)
        if shard is not None:
            local = shard.to(parameter.sharded_param.device)
            parameter.sharded_param.grad = parameter.to_sharded_dtensor(local)


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


def _parameters(module: nn.Module) -> Iterator[Any]:
    """FSDP's record of each parameter."""
    for part in divided_parts(module):
        for group in _own_groups(part):
            yield from group.fsdp_params


def _own_groups(part: FSDPModule) -> list[Any]:
    state: Any = part._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group else []  # torch 2.11 has one for a module, or none


def _own_mesh_infos(part: FSDPModule) -> Iterator[Any]:
    for group in _own_groups(part):
        for info in (group.mesh_info, group.post_forward_mesh_info):
            if info is not None:
                yield info
