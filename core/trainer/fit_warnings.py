"""Warnings of a ``fit``: what it leaves unused though it seems to be meant, losses that are no numbers, slow data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..data import PreparedCombined
from ..errors import quoted
from ..logging import get_logger
from ..plan.capabilities import usable_cores
from .metrics.stage_metrics import StageMetrics
from .module.hooks import overridden
from .module.module import Module
from .module.plain_module import PlainModule
from .run_context import RunContext
from .settings import Settings
from .trainer_state import Progress

logger = get_logger(__name__)


def warn_of_unused_validation(module: Module) -> None:
    """Warn if ``module`` can be validated; there is no loader for it."""
    if overridden(module, Module, "validation_step") is not None:
        logger.warning(
            "fit: %s defines validation_step, but there is no validation loader, so nothing is validated. Pass "
            "val_dataloaders, or set limit_val_batches=0",
            _name(module),
        )


def warn_of_late_validation(settings: Settings, num_batches: float) -> None:
    """Warn if ``fit`` ends before its first validation.

    Args:
        settings: Of the run.
        num_batches: The number of training batches of an epoch; infinite if it is not known.
    """
    every, epochs, interval = settings.check_val_every_n_epoch, settings.epoch_limit, settings.val_check_interval
    if every is not None and 0 < epochs < every:
        logger.warning(
            "fit: check_val_every_n_epoch=%d and max_epochs=%d: nothing is validated. Give a smaller number of epochs, "
            "or set limit_val_batches=0",
            every,
            epochs,
        )
    elif every is None and isinstance(interval, int) and epochs and epochs * num_batches < interval:
        logger.warning(
            "fit: val_check_interval=%d, and max_epochs=%d has %d batches: nothing is validated. Give a smaller number "
            "of batches, or set limit_val_batches=0",
            interval,
            epochs,
            epochs * num_batches,
        )


def warn_of_short_epoch(progress: Progress, interval: int) -> None:
    """Warn that an epoch, whose length was not known before, was too short for a validation."""
    logger.warning(
        "fit: val_check_interval=%d, and epoch %d had only %d batches, so it has no validation. Give a smaller number; "
        "or set check_val_every_n_epoch=None to count over all epochs, or limit_val_batches=0 for no validation",
        interval,
        progress.epoch,
        progress.batch,
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
        number = None if value is None else torch.as_tensor(value).detach().cpu()  # a device may lack what follows
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


def warn_of_rare_logs(context: RunContext, metrics: StageMetrics) -> None:
    """Warn after the batches of the first epoch if values of its steps were for the loggers, and no step was logged."""
    progress, every = context.progress, context.settings.log_every_n_steps
    if progress.epoch or not 0 < progress.step < every or progress.all_stop or context.settings.fast_dev_run:
        return
    if context.metric_log.loggers and (names := metrics.step_values(logger_only=True)):
        logger.warning(
            "fit: log_every_n_steps=%d, and an epoch has %d step(s): the logger gets %s of less than one step in an "
            "epoch. Set log_every_n_steps=%d or less, or log with on_epoch=True",
            every,
            progress.step,
            quoted(sorted(names)[:3]),
            progress.step,
        )


def warn_of_waiting(context: RunContext, loader: Any, steps: int, waited: float, worked: float) -> None:
    """Warn that a fit waits for batches for most of its time.

    Args:
        context: Of the fit.
        loader: The prepared loader of the batches.
        steps: How many steps were measured.
        waited: The seconds that they waited for their batches.
        worked: Their other seconds.
    """
    parts = loader.flattened if isinstance(loader, PreparedCombined) else [loader]
    workers = min(getattr(part, "num_workers", -1) for part in parts)
    cores, processes = usable_cores(), context.runtime.strategy.local_processes
    share = max(cores // processes, 1)
    remedy = "Make what the loader does for a batch quicker, such as by storing what it computes"
    if workers < 0:  # not that of torch
        remedy += ", or read the data in a DataLoader with num_workers="
    elif workers < share:
        remedy = (
            f"The DataLoader has num_workers={workers}: set num_workers={share} ({cores} core(s) for {processes} "
            "process(es)), so that workers make batches while a step runs"
        )
    logger.warning(
        "fit: %d steps have waited %.0f of %.0f seconds for their batches. %s", steps, waited, waited + worked, remedy
    )


def _name(module: Module) -> str:
    return type(module.user_module if isinstance(module, PlainModule) else module).__name__
