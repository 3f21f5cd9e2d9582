"""The mesh: all processes of a run along named dimensions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ...errors import ConfigurationError
from ...utilities.torch_private import release_groups

__all__ = ["check_size", "detach_mesh", "make_mesh"]


def make_mesh(device_type: str, sizes: Mapping[str, int]) -> DeviceMesh:
    """All processes along dimensions of these names and sizes, the last one fastest; every process calls it.

    Groups are formed one by one: torch's own way splits the default group, which only few backends can.
    """
    names = tuple(sizes)
    if len(sizes) == 1:
        return DeviceMesh.from_group(_default_group(), device_type, mesh_dim_names=names)
    ranks = torch.arange(dist.get_world_size()).reshape(tuple(sizes.values()))
    groups = [_own_group(ranks.movedim(position, -1).flatten(0, -2).tolist()) for position in range(ranks.dim())]
    return DeviceMesh.from_group(groups, device_type, mesh=ranks, mesh_dim_names=names)


def _default_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None  # the strategy has joined it
    return group


def _own_group(lines: list[list[int]]) -> dist.ProcessGroup:
    groups = {rank: group for line in lines for group in [dist.new_group(line)] for rank in line}
    own: dist.ProcessGroup = groups[dist.get_rank()]
    return own


def detach_mesh(mesh: DeviceMesh) -> None:
    """Release the process groups of ``mesh``."""
    release_groups(mesh)


def check_size(argument: str, size: object, name: str | None = None) -> None:
    """Check that ``size`` can be the size of a mesh's dimension: a positive integer, or ``name``.

    Raises:
        ConfigurationError: It is neither.
    """
    if (name is not None and size == name) or (isinstance(size, int) and not isinstance(size, bool) and size >= 1):
        return
    other = "" if name is None else f", or {name!r}"
    raise ConfigurationError(f"{argument}={size!r}: must be an integer of at least 1{other}.")
