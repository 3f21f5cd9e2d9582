"""Warnings about what a ``fit`` leaves unused though it seems to be meant, and about losses that are no numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..logging import get_logger
from .module.hooks import overridden
from .module.module import Module
from .module.plain_module import PlainModule
from .progress import Progress
from .settings import Settings

__all__ = [
    "warn_of_infinite_loss",
    "warn_of_late_validation",
    "warn_of_missing_steps",
    "warn_of_unused_validation",
]

logger = get_logger(__name__)


def warn_of_unused_validation(module: Module) -> None:
    """Warn if ``module`` can be validated; there is no loader for it."""
    if overridden(module, Module, "validation_step") is not None:
        logger.warning(
            "fit: %s defines validation_step, but there is no validation loader, so nothing is validated. Pass "
            "val_dataloaders, or set limit_val_batches=0",
            _name(module),
        )


def warn_of_late_validation(settings: Settings) -> None:
    """Warn if ``fit`` ends before the first epoch with validation."""
    every, epochs = settings.check_val_every_n_epoch, settings.epoch_limit
    if every is not None and 0 < epochs < every:
        logger.warning(
            "fit: check_val_every_n_epoch=%d and max_epochs=%d: nothing is validated. Give a smaller number of epochs, "
            "or set limit_val_batches=0",
            every,
            epochs,
        )


def warn_of_missing_steps(module: Module, progress: Progress) -> None:
    """Warn if the first epoch of manual optimization has stepped none of its optimizers."""
    if progress.epoch == progress.step == 0 < progress.batch:
        logger.warning(
            "fit: automatic_optimization is False, and training_step of %s has not stepped an optimizer in epoch 0. "
            "Call optimizer = self.optimizers(), self.manual_backward(loss) and optimizer.step(), or leave "
            "automatic_optimization as it is",
            _name(module),
        )


def warn_of_infinite_loss(loss: Tensor | None, logged: Mapping[str, Any], progress: Progress) -> bool:
    """Warn if ``loss`` is NaN or infinite, or a value of a loss that was ``logged``; whether it is. It reads them."""
    values = {"the loss": loss} | {f"{name!r}" + ", as logged,": logged[name] for name in logged if "loss" in name}
    for name, value in values.items():
        number = None if value is None else torch.as_tensor(value).detach()
        if number is None or number.isfinite().all():
            continue
        logger.warning(
            "training_step: %s is %s in step %d (epoch %d, batch %d), if not since a step before, and training goes on "
            "with it. Look for such values in the data, lower the learning rate, or set gradient_clip_val=. "
            "Trainer(detect_anomaly=True) finds the operation that they come from",
            name,
            number.tolist(),
            progress.step,
            progress.epoch,
            max(progress.batch - 1, 0),
        )
        return True
    return False


def _name(module: Module) -> str:
    return type(module.user_module if isinstance(module, PlainModule) else module).__name__
