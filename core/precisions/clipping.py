"""Limiting gradients."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from core.errors import ConfigurationError, quoted

__all__ = ["clip_gradients"]

ALGORITHMS = ("norm", "value")


def clip_gradients(
    parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
) -> Tensor | None:
    """Limit gradients in place; see :meth:`core.precisions.Precision.clip_gradients`."""
    if not clip_value >= 0:
        raise ConfigurationError(f"clip_value={clip_value!r}. Valid: a number from 0 on.")
    if algorithm not in ALGORITHMS:
        raise ConfigurationError(f"algorithm={algorithm!r} for clipping gradients. Valid: {quoted(ALGORITHMS)}.")
    with_gradients = [parameter for parameter in parameters if parameter.grad is not None]
    if algorithm == "norm":
        return nn.utils.clip_grad_norm_(with_gradients, clip_value, norm_type)
    if with_gradients:
        nn.utils.clip_grad_value_(with_gradients, clip_value)
    return None
