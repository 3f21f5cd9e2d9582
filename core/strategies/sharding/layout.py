"""Full tensors and their shards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ...utilities.torch_private import local_shape_and_offset

__all__ = ["like", "own_part", "put_whole", "to_whole"]


def own_part(whole: Tensor, target: DTensor) -> Tensor:
    """The part of ``whole`` that this process holds of ``target``, which has its shape; a view."""
    shape, offset = local_shape_and_offset(target.shape, target.device_mesh, target.placements)
    return whole[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]


def put_whole(target: Tensor, whole: Tensor) -> None:
    """Copy ``whole`` into ``target``, which can be sharded; no other process takes part."""
    with torch.no_grad():
        if isinstance(target, DTensor):
            target.to_local().copy_(own_part(whole, target))
        else:
            target.copy_(whole)


def to_whole(value: Tensor, device: torch.device) -> Tensor:
    """``value`` as a full tensor in every process; all processes call it.

    Args:
        value: Sharded or not.
        device: The device for communication.
    """
    if not isinstance(value, DTensor):
        return value
    local = _local(value).to(device)
    return _divided(local, value).full_tensor()


def like(target: Tensor, value: Tensor, device: torch.device) -> Tensor:
    """``value`` sharded like ``target``, of the same shape, and on its device; all processes call it.

    Args:
        target: A sharded or full tensor.
        value: Another one.
        device: The device for communication.
    """
    if not isinstance(target, DTensor):
        return to_whole(value, device)
    place = _local(target).device
    if isinstance(value, DTensor) and _same_layout(value, target):
        return _divided(_local(value).to(place), target)
    part = own_part(to_whole(value, device), target)
    return _divided(part.to(place, copy=True), target)


def _same_layout(one: DTensor, other: DTensor) -> bool:
    return one.device_mesh == other.device_mesh and one.placements == other.placements


def _local(value: DTensor) -> Tensor:
    with torch.no_grad():
        local: Any = value.to_local()
        return getattr(local, "wait", lambda: local)()  # type: ignore[no-any-return]


def _divided(local: Tensor, layout: DTensor) -> DTensor:
    return DTensor.from_local(
        local, layout.device_mesh, layout.placements, run_check=False, shape=layout.shape, stride=layout.stride()
    )
