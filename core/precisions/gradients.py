"""Gradients: how they are clipped, and messages about a loss of which none can be computed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigurationError, WrongTypeError, quoted

__all__ = ["LossError", "check_loss", "check_tensor", "clip_gradients"]

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
    if algorithm == "norm":
        return _clip_norm(with_gradients, clip_value, norm_type)
    if with_gradients:
        nn.utils.clip_grad_value_(with_gradients, clip_value)
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


SECOND_TIME = "backward through the graph a second time"
"""In torch's error."""


class LossError(ConfigurationError):
    """No gradients can be computed of a loss."""

    of_step = ""
    """What the message is if the Trainer has called backward for what ``training_step`` returned."""


def _error(fault: str, of_step: str = "") -> LossError:
    error = LossError(f"backward: {fault}")
    error.of_step = f"training_step: {of_step or fault}"
    return error


def check_tensor(loss: Any, cause: BaseException | None = None) -> None:
    """Raise an error for a loss that is no tensor.

    Raises:
        WrongTypeError: It is not.
    """
    if not isinstance(loss, Tensor):
        raise WrongTypeError(
            f"backward: the loss is {loss!r:.100} of type {type(loss).__name__}: must be a scalar tensor. Pass what "
            "the criterion returned, without .item() or float()."
        ) from cause


def check_loss(loss: Any, cause: BaseException | None, gradient: Any = None, *args: Any, **kwargs: Any) -> None:
    """Raise an error that names the fault, if it is one of the loss itself.

    Args:
        loss: What backward was called for.
        cause: What that raised.
        gradient: The gradient that was passed, which a loss of several elements needs.
        *args: Not used.
        **kwargs: Not used.

    Raises:
        WrongTypeError: It is not a tensor.
        LossError: It has several elements, does not depend on a parameter, or has been through backward before.
    """
    del args, kwargs
    check_tensor(loss, cause)
    if not loss.requires_grad:
        raise _error(
            f"the loss, a tensor of shape {tuple(loss.shape)}, does not depend on a parameter that requires "
            "gradients. Remove .detach(), .item(), torch.no_grad() or torch.tensor(...) from its computation, or set "
            "requires_grad of the parameters."
        ) from cause
    if loss.numel() != 1 and gradient is None:
        raise _error(
            f"the loss has the shape {tuple(loss.shape)}: must be a scalar. Reduce it, for example with loss.mean()."
        ) from cause
    if SECOND_TIME in str(cause):
        detach = "If it uses a tensor of an earlier step, keep that as tensor.detach()."
        raise _error(
            "it was called before for this loss or a part of it, which has freed what it needs. Call it once for each "
            f"step. {detach}",
            "backward was called before for the loss that it returned, or a part of it. Remove loss.backward(): the "
            f"Trainer calls it; or set self.automatic_optimization = False in __init__ to do so yourself. {detach}",
        ) from cause
