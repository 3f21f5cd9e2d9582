"""The whole training step: forward, backward and the optimizer's step, composed once before the loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs
from torch import Tensor, nn
from torch.optim import Optimizer

from ...precisions.gradients import check_loss

__all__ = ["StepParts", "TrainingStep", "TrainingStepOptions", "compose_training_step", "tensor_backward"]


@attrs.frozen(kw_only=True)
class TrainingStepOptions:
    """What a training step does besides the forward pass."""

    optimizer: Optimizer
    """The optimizer that is stepped, as :meth:`core.Strategy.setup_optimizers` returned it."""
    module: nn.Module
    """The module whose gradients are reduced and clipped, as :meth:`core.Strategy.setup_module` returned it."""
    accumulate: int = 1
    """Batches per optimizer step; each loss is divided by this number."""
    clip_value: float | None = None
    """The limit of gradients, as in :meth:`core.Precision.clip_gradients`; ``None`` for no clipping."""
    clip_algorithm: str = "norm"
    """See :meth:`core.Precision.clip_gradients`."""
    customize: Callable[[StepParts], TrainingStep] | None = None
    """Composes the step of a user who overrides parts of it, from the strategy's parts; ``None`` for the default. A
    strategy that runs the whole step by itself leaves it alone, and the Trainer then refuses what was overridden."""


@attrs.frozen(kw_only=True)
class StepParts:
    """What a strategy contributes to a training step."""

    forward: Callable[[Any, int], Tensor | None]
    """``forward(batch, batch_idx)`` returns the loss, a scalar, or ``None`` to skip the batch."""
    backward: Callable[[Tensor], object]
    """Computes gradients of the loss and reduces them."""
    optimizer_step: Callable[..., Any]
    """``optimizer_step(closure=None)`` applies the gradients."""
    clip_gradients: Callable[[float, str], object]
    """Limits the gradients to a value by an algorithm."""
    no_sync: Callable[[nn.Module], AbstractContextManager[Any]]
    """Returns a context in which gradients of a module are not reduced."""


TrainingStep = Callable[[Any, int, bool], Tensor | None]
"""One batch: ``step(batch, batch_idx, is_step_end)`` runs forward and backward, and steps the optimizer if
``is_step_end``. Returns the loss, or ``None`` if ``forward`` skipped the batch."""


def compose_training_step(
    forward: Callable[[Any, int], Tensor | None],
    options: TrainingStepOptions,
    *,
    backward: Callable[[Tensor], object],
    optimizer_step: Callable[..., Any],
    clip_gradients: Callable[[float, str], object],
    no_sync: Callable[[nn.Module], AbstractContextManager[Any]],
) -> TrainingStep:
    """The step that :meth:`core.Strategy.training_step` makes by default.

    Args:
        forward: ``forward(batch, batch_idx)`` returns the loss, a scalar, or ``None`` to skip the batch.
        options: What else the step does.
        backward: Computes gradients of the loss and reduces them.
        optimizer_step: Applies the gradients.
        clip_gradients: Limits the gradients to a value by an algorithm.
        no_sync: Returns a context in which gradients of a module are not reduced.
    """
    if options.customize is not None:
        parts = StepParts(
            forward=forward,
            backward=backward,
            optimizer_step=optimizer_step,
            clip_gradients=clip_gradients,
            no_sync=no_sync,
        )
        return options.customize(parts)
    module, zero_grad = options.module, options.optimizer.zero_grad
    clip_value, accumulate = options.clip_value, options.accumulate
    if accumulate == 1 and clip_value is None:

        def plain_step(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
            loss = forward(batch, batch_idx)
            if loss is not None:
                backward(loss)
                optimizer_step()
                zero_grad()
            return loss

        return plain_step

    has_gradients = False

    def accumulating_step(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
        nonlocal has_gradients
        with nullcontext() if is_step_end else no_sync(module):
            loss = forward(batch, batch_idx)
            if loss is not None:
                backward(loss / accumulate if accumulate > 1 else loss)
                has_gradients = True
        if is_step_end and has_gradients:
            has_gradients = False
            if clip_value is not None:
                clip_gradients(clip_value, options.clip_algorithm)
            optimizer_step()
            zero_grad()
        return loss

    return accumulating_step


def tensor_backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
    """``loss.backward(*args, **kwargs)``."""
    try:
        if args or kwargs:
            loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]
        else:  # the common call; Python makes it without building a tuple and a dictionary
            loss.backward()  # type: ignore[no-untyped-call]
    except (RuntimeError, AttributeError) as error:
        check_loss(loss, error, *args, **kwargs)
        raise
