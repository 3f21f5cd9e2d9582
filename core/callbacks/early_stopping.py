"""Ends a fit when a metric no longer improves."""

from __future__ import annotations

import logging
import math
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ConfigurationError, WrongTypeError
from ..hints.argument_checks import check_count
from .agreement import decide_in_process_zero, not_logged
from .base import Callback, has_validated_in_epoch, is_long_enough, is_training, validates_once_in_each_epoch

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

logger = logging.getLogger(__name__)


class EarlyStoppingReason(Enum):
    """Why :class:`EarlyStopping` has ended a fit."""

    NOT_STOPPED = 0
    STOPPING_THRESHOLD = 1
    DIVERGENCE_THRESHOLD = 2
    PATIENCE_EXHAUSTED = 3
    NON_FINITE_METRIC = 4


class EarlyStopping(Callback):
    """Ends ``fit`` when a metric has not improved in ``patience`` checks.

    ::

        Trainer(callbacks=EarlyStopping("val_loss", patience=5))

    Process 0 decides by its own metrics, for all processes. Each measured value is judged once, so an epoch without
    validation counts nothing. A check before ``min_epochs`` or ``min_steps`` counts towards ``patience``, but does not
    end the fit: the first check after them decides by the metric that it finds.

    A fit that is resumed after this has ended it trains no further, with a warning, unless its ``patience`` or its
    thresholds let it go on.

    Args:
        monitor: The metric.
        min_delta: An improvement must be larger than this.
        patience: How many checks without improvement end the fit.
        verbose: Log improvements and the reason for the end at level INFO.
        mode: ``"min"`` or ``"max"``: whether a small or a large metric is good.
        strict: Whether a metric that was not logged is an error; otherwise the check is skipped.
        check_finite: Whether NaN or infinity ends the fit.
        stopping_threshold: A metric better than this ends the fit.
        divergence_threshold: A metric worse than this ends the fit.
        check_on_train_epoch_end: Whether to check at the end of the training epoch or after validation. By default
            after validation if it runs more than once in an epoch or not in every epoch; and at the end of an epoch in
            which no value was judged, as one without validation.
        log_rank_zero_only: Whether only process 0 logs with ``verbose``.

    Raises:
        ConfigurationError: ``mode``, ``patience`` or a threshold is out of range.
        WrongTypeError: ``monitor`` is not a name.
    """

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        if not isinstance(monitor, str):
            raise WrongTypeError(f"monitor={monitor!r}: must be the name of a metric.")
        if mode not in ("min", "max"):
            raise ConfigurationError(f"mode={mode!r}: must be 'min' or 'max'.")
        check_count("patience", patience, 0)
        if isinstance(min_delta, bool) or not isinstance(min_delta, int | float) or not min_delta >= 0:
            raise ConfigurationError(f"min_delta={min_delta!r}: must be a number ≥ 0.")
        self.monitor = monitor
        self.mode = mode
        self.min_delta = min_delta if mode == "max" else -min_delta
        self.patience = patience
        self.verbose = verbose
        self.strict = strict
        self.check_finite = check_finite
        self.stopping_threshold = stopping_threshold
        self.divergence_threshold = divergence_threshold
        self.check_on_train_epoch_end = check_on_train_epoch_end
        self.log_rank_zero_only = log_rank_zero_only
        self._reset()

    def _reset(self) -> None:
        self._judged_at: list[int] | None = None
        """When the value of the newest check was measured: each counts once."""
        self.wait_count = 0
        """How many checks in a row have brought no improvement."""
        self.stopped_epoch = 0
        """The epoch in which this has ended the fit; 0 if it has not."""
        self.best_score = torch.tensor(torch.inf if self.mode == "min" else -torch.inf)
        """The best value so far."""
        self.stopping_reason = EarlyStoppingReason.NOT_STOPPED
        """Why the fit has ended."""
        self.stopping_reason_message: str | None = None
        """The same as a sentence."""

    @property
    def state_key(self) -> str:
        """Its name in checkpoints, by metric and mode."""
        return f"{type(self).__qualname__}(monitor={self.monitor!r}, mode={self.mode!r})"

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Forget an earlier run."""
        if stage == "fit":
            self._reset()

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """End a resumed fit that this has ended before."""
        if self.stopping_reason is EarlyStoppingReason.NOT_STOPPED or trainer.fast_dev_run:
            return
        if decide_in_process_zero(trainer, lambda: self._is_over(trainer)):
            trainer.should_stop = trainer.progress.all_stop = True
            if trainer.is_global_zero:
                logger.warning(
                    "EarlyStopping had ended the fit that the checkpoint is of, so no further epoch is trained: %s. To "
                    "train on, give it more patience or other thresholds, or leave it out",
                    self.stopping_reason_message or self.stopping_reason.name,
                )
            return
        self.stopped_epoch, self.stopping_reason_message = 0, None
        self.stopping_reason = EarlyStoppingReason.NOT_STOPPED

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Check, unless that is due at the end of the training epoch."""
        if is_training(trainer) and not self._checks_on_train_epoch_end(trainer):
            self._check(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Check, unless that is due after validation, and was done there."""
        has_judged = self._judged_at is not None and self._judged_at[0] == trainer.current_epoch
        is_left = self.check_on_train_epoch_end is None and not has_judged
        if is_left or self._checks_on_train_epoch_end(trainer):
            self._check(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The best value, how long ago it was, and why the fit has ended."""
        return {
            "wait_count": self.wait_count,
            "stopped_epoch": self.stopped_epoch,
            "best_score": self.best_score,
            "stopping_reason": self.stopping_reason.value,
            "stopping_reason_message": self.stopping_reason_message,
            "judged_at": self._judged_at,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned. ``patience`` and the other arguments of this run stay."""
        self.wait_count, self.stopped_epoch = state_dict["wait_count"], state_dict["stopped_epoch"]
        self.best_score = state_dict["best_score"]
        # A checkpoint of Lightning has no reason.
        self.stopping_reason = EarlyStoppingReason(
            state_dict.get("stopping_reason", EarlyStoppingReason.NOT_STOPPED.value)
        )
        self.stopping_reason_message = state_dict.get("stopping_reason_message")
        self._judged_at = state_dict.get("judged_at")

    def _checks_on_train_epoch_end(self, trainer: Trainer) -> bool:
        chosen = self.check_on_train_epoch_end
        return validates_once_in_each_epoch(trainer) if chosen is None else chosen

    def _waits(self, trainer: Trainer) -> bool:
        """Whether the metric may be one of a validation that this epoch did not have."""
        return self.check_on_train_epoch_end is None and not has_validated_in_epoch(trainer, default=True)

    def _check(self, trainer: Trainer) -> None:
        if trainer.fast_dev_run:
            return
        state, should_stop, message = decide_in_process_zero(trainer, lambda: self._decide(trainer))
        self.load_state_dict(state)
        if should_stop:
            trainer.should_stop = True
        if message and self.verbose and (trainer.is_global_zero or not self.log_rank_zero_only):
            logger.info(message)

    def _decide(self, trainer: Trainer) -> tuple[dict[str, Any], bool, str]:
        """In process 0: the new state, whether to stop, and why."""
        metrics = trainer.callback_metrics
        if self.monitor not in metrics and self._waits(trainer):
            return self.state_dict(), False, ""
        if self.monitor not in metrics:
            remedy = "Log it with self.log before each check, "
            if not self._checks_on_train_epoch_end(trainer):
                remedy += "which is after each validation, check at the end of training epochs with "
                remedy += "check_on_train_epoch_end=True, "
            error = not_logged(type(self).__name__, self.monitor, metrics, f"{remedy}or set strict=False.")
            if self.strict:
                raise error
            if self.verbose:
                logger.warning("%s", error)
            return self.state_dict(), False, ""
        measured_at = list(trainer.metric_log.measured_at(self.monitor))
        if measured_at == self._judged_at:
            return self.state_dict(), False, ""
        current = metrics[self.monitor].detach().cpu()
        reason, message = self._judge(float(current), is_long_enough(trainer))
        state = {**self.state_dict(), "judged_at": measured_at}
        if reason is None:
            return {**state, "wait_count": 0, "best_score": current.clone()}, False, message
        if reason is EarlyStoppingReason.PATIENCE_EXHAUSTED:
            state["wait_count"] += 1
        if reason is EarlyStoppingReason.NOT_STOPPED:
            return {**state, "wait_count": self.wait_count + 1}, False, ""
        stopped = {
            "stopped_epoch": trainer.current_epoch,
            "stopping_reason": reason.value,
            "stopping_reason_message": message,
        }
        return {**state, **stopped}, True, message

    def _is_over(self, trainer: Trainer) -> bool:
        """Whether the reason for the end of the fit before is one with the arguments of this run too."""
        if not is_long_enough(trainer):
            return False
        if self.stopping_reason is EarlyStoppingReason.PATIENCE_EXHAUSTED:
            return self.wait_count >= self.patience
        current = trainer.callback_metrics.get(self.monitor)  # a checkpoint of Lightning has none
        return current is None or self._reached(float(current), float(self.best_score)) is not None

    def _judge(self, current: float, may_stop: bool) -> tuple[EarlyStoppingReason | None, str]:
        """Why to stop; ``NOT_STOPPED`` without an improvement or where the run may not stop yet, ``None`` with one."""
        best = float(self.best_score)
        if may_stop and (reached := self._reached(current, best)) is not None:
            return reached
        if self._is_better(current - self.min_delta, best):
            return None, f"{self.monitor} has improved from {best:.3f} to {current:.3f}"
        if may_stop and self.wait_count + 1 >= self.patience:
            return (
                EarlyStoppingReason.PATIENCE_EXHAUSTED,
                f"{self.monitor} has not improved in {self.wait_count + 1} checks; the best value is {best:.3f}",
            )
        return EarlyStoppingReason.NOT_STOPPED, ""

    def _reached(self, current: float, best: float) -> tuple[EarlyStoppingReason, str] | None:
        """Why the value alone ends the fit."""
        if self.check_finite and not math.isfinite(current):
            return EarlyStoppingReason.NON_FINITE_METRIC, f"{self.monitor} is {current}; the best value was {best:.3f}"
        if self.stopping_threshold is not None and self._is_better(current, self.stopping_threshold):
            return (
                EarlyStoppingReason.STOPPING_THRESHOLD,
                f"{self.monitor} is {current:.3f}, better than stopping_threshold={self.stopping_threshold}",
            )
        if self.divergence_threshold is not None and self._is_better(self.divergence_threshold, current):
            return (
                EarlyStoppingReason.DIVERGENCE_THRESHOLD,
                f"{self.monitor} is {current:.3f}, worse than divergence_threshold={self.divergence_threshold}",
            )
        return None

    def _is_better(self, one: float, other: float) -> bool:
        return one < other if self.mode == "min" else one > other
