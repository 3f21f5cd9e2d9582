"""One process on all devices: what is to be split is recorded, and stays on the first of them."""

from __future__ import annotations

from typing import Any

import torch
from stand_ins import calls, recorded

from torch_xla import _module

__all__ = ["Mesh", "get_1d_mesh", "mark_sharding"]


class Mesh:
    """Devices in an array with named dimensions."""

    def __init__(self, device_ids: Any, mesh_shape: tuple[int, ...], axis_names: tuple[str, ...] | None = None) -> None:
        self.device_ids = device_ids
        self.mesh_shape = mesh_shape
        self.axis_names = axis_names


@recorded("xs.get_1d_mesh")
def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """All devices in one dimension."""
    devices = _module.device_count()
    return Mesh(list(range(devices)), (devices,), None if axis_name is None else (axis_name,))


def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: tuple[Any, ...]) -> torch.Tensor:
    """Have ``t`` split over the mesh; recorded with what each of its dimensions is split over."""
    assert t.dim() == len(partition_spec)
    calls.append(f"xs.mark_sharding{partition_spec}")
    return t
