"""Gradient clipping: by norm or by value, as torch does it; the norm includes the shards of all processes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigurationError, quoted

ALGORITHMS = ("norm", "value")


def clip_gradients(
    parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
) -> Tensor | None:
    """Clip gradients in place; see :meth:`core.precisions.Precision.clip_gradients`."""
    if not clip_value >= 0:
        raise ConfigurationError(f"clip_value={clip_value!r}: must be a number ≥ 0.")
    if algorithm not in ALGORITHMS:
        raise ConfigurationError(f"algorithm={algorithm!r} cannot clip gradients. Valid: {quoted(ALGORITHMS)}.")
    with_gradients = [parameter for parameter in parameters if parameter.grad is not None]
    try:
        if algorithm == "norm":
            return _clip_norm(with_gradients, clip_value, norm_type)
        if with_gradients:
            nn.utils.clip_grad_value_(with_gradients, clip_value)
    except NotImplementedError as error:  # by torch
        raise ConfigurationError(
            f"Gradients are not clipped by {algorithm}: torch clips no sparse gradients, and complex ones only by "
            "norm. Create embeddings with sparse=False, or clip the other parameters alone: in a Module, override "
            "configure_gradient_clipping."
        ) from error
    return None


def _clip_norm(parameters: list[nn.Parameter], clip_value: float, norm_type: float) -> Tensor:
    """Clip as torch does; for gradients sharded over processes, by the norm of the full gradients."""
    by_mesh: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_mesh.setdefault(getattr(parameter.grad, "device_mesh", None), []).append(parameter)
    if by_mesh.keys() <= {None}:
        norm: Tensor = nn.utils.clip_grad_norm_(parameters, clip_value, norm_type)
        return norm
    # torch only combines norms of tensors on one mesh. The norm of a vector is the norm of its parts' norms.
    norms = [_norm_on_one_mesh(_gradients(group), mesh, norm_type) for mesh, group in by_mesh.items()]
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]), norm_type)
    for group in by_mesh.values():
        nn.utils.clip_grads_with_norm_(group, clip_value, total)
    return total


def _gradients(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _norm_on_one_mesh(gradients: list[Tensor], mesh: Any, norm_type: float) -> Tensor:
    if mesh is not None and norm_type == math.inf:
        return _largest(gradients, mesh)
    return _whole(nn.utils.get_total_norm(gradients, norm_type))


def _largest(gradients: list[Any], mesh: Any) -> Tensor:
    """The largest absolute value; torch's own norm raises in a process whose shard of a small parameter is empty."""
    from torch.distributed.tensor import DTensor, Shard

    shards = [
        gradient.full_tensor() if any(place.is_partial() for place in gradient.placements) else gradient.to_local()
        for gradient in gradients
    ]
    values = [shard.abs().max() for shard in shards if shard.numel()] or [shards[0].new_zeros(())]
    # Gathered, and not reduced by a maximum, which may lose NaN.
    of_each = DTensor.from_local(torch.stack(values).amax().reshape(1), mesh, [Shard(0)] * mesh.ndim)
    return of_each.full_tensor().amax()


def _whole(tensor: Any) -> Tensor:
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole
