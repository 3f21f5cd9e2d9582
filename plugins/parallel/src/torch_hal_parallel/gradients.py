"""Gradients of a model that is spread over a mesh: averaged over replicas, and clipped by the norm of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from torch_hal.errors import ConfigurationError
from torch_hal.strategies import REDUCTIONS

__all__ = ["Line", "clip_norm", "clip_value", "sum_parts"]


class Line:
    """The processes along one dimension of the mesh; reduces as a strategy does.

    Args:
        name: The strategy's, for errors.
        group: The processes.
        device: Of this process.
    """

    def __init__(self, name: str, group: dist.ProcessGroup, device: torch.device) -> None:
        self.name, self.group, self.root_device = name, group, device
        self.rank, self.world_size = group.rank(), group.size()

    def all_reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        """In place; a mean is a sum."""
        dist.all_reduce(tensor, op=REDUCTIONS[reduction].operation, group=self.group)
        return tensor

    def global_rank(self, rank: int) -> int:
        """The rank among all processes of the one with ``rank`` in this line."""
        return dist.get_global_rank(self.group, rank)


def sum_parts(parameters: Iterable[nn.Parameter]) -> None:
    """Sum gradients of which each process of a tensor parallel layer has a part, as with the style ``"sequence"``."""
    for one in parameters:
        if isinstance(one.grad, DTensor) and isinstance(one, DTensor):
            one.grad = one.grad.redistribute(placements=one.placements)


def clip_norm(
    parameters: Iterable[nn.Parameter],
    limit: float,
    norm_type: float,
    tensor: Line | None,
    pipeline: Line | None,
    device: torch.device,
) -> Tensor:
    """Scale the gradients of ``parameters`` in place, so that the norm of the whole model's is at most ``limit``.

    Args:
        parameters: Those of this process; every process of a replica passes its own.
        limit: The largest norm.
        norm_type: The order of the norm.
        tensor: The processes that hold other shards of the same parameters.
        pipeline: The processes that hold other layers.
        device: For communication.

    Returns:
        The norm before, equal in every process.
    """
    _check_limit(limit)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    counted = [_local(one) for one in gradients if tensor is None or tensor.rank == 0 or _is_sharded(one)]
    lines = [line for line in (tensor, pipeline) if line is not None]
    norms = [torch.linalg.vector_norm(one.float(), norm_type) for one in counted]
    stacked = torch.stack(norms) if norms else torch.zeros(1)
    own: Tensor = torch.linalg.vector_norm(stacked.to(device), norm_type)
    if norm_type == torch.inf:
        for line in lines:
            line.all_reduce(own, "max")
    else:
        own = own**norm_type
        for line in lines:
            line.all_reduce(own, "sum")
        own = own ** (1 / norm_type)
    factor = (limit / (own + 1e-6)).clamp(max=1.0)  # as torch does
    for one in gradients:
        local = _local(one)
        local.mul_(factor.to(local.device, local.dtype))
    return own


def clip_value(parameters: Iterable[nn.Parameter], limit: float) -> None:
    """Limit each element of the gradients of ``parameters`` to ``[-limit, limit]``, in place."""
    _check_limit(limit)
    for parameter in parameters:
        if parameter.grad is not None:
            _local(parameter.grad).clamp_(-limit, limit)


def sharded_dimension(tensor: Tensor) -> int | None:
    """The dimension along which ``tensor`` is sharded; ``None`` if each process of its mesh has all of it."""
    placements: Sequence[object] = tensor.placements if isinstance(tensor, DTensor) else ()
    return next((place.dim for place in placements if isinstance(place, Shard)), None)


def _check_limit(limit: float) -> None:
    if not limit >= 0:
        raise ConfigurationError(f"clip_value={limit!r}: must be a number ≥ 0.")


def _is_sharded(gradient: Tensor) -> bool:
    return sharded_dimension(gradient) is not None


def _local(gradient: Tensor) -> Tensor:
    local: Tensor = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    return local
