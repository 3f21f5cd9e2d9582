"""Training steps in which the Trainer does not compute gradients: manual optimization, or no optimizer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from ...strategies.training_step import TrainingStep
from ..module.hooks import overridden
from ..module.module import Module
from .optimizer_controls import Controls

__all__ = ["manual_step", "step_without_optimizer"]

logger = logging.getLogger(__name__)


def manual_step(model: nn.Module, module: Module, controls: Controls, outputs: list[Any]) -> TrainingStep:
    """The step of a Module that calls backward and steps its optimizers itself.

    Args:
        model: The module's ``training_step`` as the forward pass that the strategy wraps.
        module: The user's Module.
        controls: Of the fit.
        outputs: Receives what the step returned, which may be anything.
    """
    end = overridden(module, Module, "training_step_end")

    def step(batch: Any, batch_idx: int, is_step_end: bool) -> None:
        del is_step_end
        with controls.forward_context():
            output = model(batch, batch_idx)
        if end is not None:
            output = end(output)
        if output is not None:
            outputs[:] = [output]

    return step


def step_without_optimizer(
    forward: Callable[[Any, int], Tensor | None], no_sync: Callable[[], AbstractContextManager[Any]]
) -> TrainingStep:
    """The forward pass alone; nothing is trained, which a warning says."""
    logger.warning(
        "configure_optimizers: returned None, so nothing is optimized: training_step is called, backward is not. "
        "Return an optimizer to train"
    )

    def step(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
        del is_step_end
        with no_sync():
            return forward(batch, batch_idx)

    return step
