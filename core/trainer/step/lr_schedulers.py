"""Learning rate schedulers of a fit: how the Trainer steps each, and the steps themselves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
from torch import Tensor

from ...errors import ConfigurationError, quoted
from ...runtime.prepare.wrappers import steps_due
from ...strategies.base import Strategy
from ..module.hooks import overridden
from ..module.module import Module
from ..run_context import RunContext

logger = logging.getLogger(__name__)

INTERVALS = ("epoch", "step")


@attrs.frozen
class LRSchedulerConfig:
    """A learning rate scheduler, and how the Trainer steps it."""

    scheduler: Any
    name: str | None = None
    """Its name in logs."""
    interval: str = "epoch"
    frequency: int = 1
    """The number of intervals between two steps."""
    reduce_on_plateau: bool = False
    """Whether its ``step`` takes the newest value of :attr:`monitor`."""
    monitor: str | None = None
    """The name of a logged metric."""
    strict: bool = True
    """Whether a missing metric is an error, and not only a warning."""


class LRSchedulers:
    """Steps the schedulers of a fit.

    Args:
        schedules: What is stepped, and how.
        context: Its module's ``lr_scheduler_step`` is called if it is overridden; its log has the metrics to
            monitor.
        strategy: Of the run.
    """

    def __init__(self, schedules: Sequence[LRSchedulerConfig], context: RunContext, strategy: Strategy) -> None:
        self._metric_log, self._progress, self._strategy = context.metric_log, context.progress, strategy
        module = context.module
        self._own_step = overridden(module, Module, "lr_scheduler_step") or partial(Module.lr_scheduler_step, module)
        self._plain: dict[str, list[LRSchedulerConfig]] = {interval: [] for interval in INTERVALS}
        self._monitoring: dict[str, list[LRSchedulerConfig]] = {interval: [] for interval in INTERVALS}
        for schedule in schedules:
            (self._monitoring if schedule.reduce_on_plateau else self._plain)[schedule.interval].append(schedule)
        self._num_groups = {id(schedule.scheduler): _num_groups(schedule.scheduler) for schedule in schedules}

    def _step(self, scheduler: Any, metric: Tensor | None) -> None:
        """Step ``scheduler``.

        Raises:
            ConfigurationError: It failed, and its optimizer has got parameter groups since it was made.
        """
        try:
            self._own_step(scheduler, metric)
        except (KeyError, ValueError, IndexError) as error:
            added = _num_groups(scheduler) - self._num_groups[id(scheduler)]
            if added <= 0:
                raise
            raise ConfigurationError(
                f"lr_scheduler: {type(scheduler).__name__} has no rates for {added} parameter group(s) that its "
                f"optimizer got after it was made, as BackboneFinetuning adds one when it unfreezes "
                f"({type(error).__name__}: {error}). Use a scheduler that changes the rate that each group has, such "
                "as StepLR, LinearLR or CosineAnnealingLR."
            ) from error

    def has(self, interval: str) -> bool:
        """Whether any scheduler is stepped at this interval."""
        return bool(self._plain[interval] or self._monitoring[interval])

    def step(self, interval: str, count: int) -> None:
        """Step the schedulers of ``interval`` that monitor nothing, if their frequency divides ``count``.

        Args:
            interval: ``"epoch"``, or ``"step"``: then one that the optimizer has skipped counts for none of them.
            count: The number of epochs or optimizer steps so far.
        """
        plain, progress = self._plain[interval], self._progress
        if interval == "step" and not self._strategy.counts_steps:
            if plain and not steps_due(plain[0].scheduler, self._strategy):  # all of them are of the one optimizer
                progress.skipped_steps += 1
                return
            count -= progress.skipped_steps
        for schedule in plain:
            if count % schedule.frequency == 0:
                self._step(schedule.scheduler, None)

    def step_monitoring(self, interval: str, count: int) -> None:
        """Step the schedulers that monitor a metric; every process calls this. Each measured value counts once.

        Raises:
            ConfigurationError: A metric was not logged.
        """
        if self._monitoring[interval]:
            self._metric_log.exchange()
        judged = self._metric_log.judged
        for index, schedule in enumerate(self._monitoring[interval]):
            key, measured_at = f"{interval}/{index}", self._metric_log.measured_at(str(schedule.monitor))
            if count % schedule.frequency == 0 and judged.get(key) != measured_at:
                judged[key] = measured_at
                metric = self._metric(schedule)
                if metric is not None:
                    self._step(schedule.scheduler, metric)

    def _metric(self, schedule: LRSchedulerConfig) -> Tensor | None:
        """The newest value, the mean over the processes: with their own values, their learning rates would differ."""
        found = self._metric_log.latest
        value = found.get(str(schedule.monitor))
        if value is not None:
            if self._strategy.world_size == 1:
                return value
            with self._strategy.assume_alike():
                values = self._strategy.all_gather(value.detach().double()).cpu()
            return values[0] if bool((values == values[0]).all()) else values.mean()
        name = type(schedule.scheduler).__name__
        said = (
            f"{name} monitors {schedule.monitor!r}, which was not logged. Logged so far: {quoted(found) or 'nothing'}"
        )
        if schedule.strict:
            raise ConfigurationError(
                f"lr_scheduler: {said}. Log it with self.log in training or validation, set 'frequency' to the number "
                f"of {schedule.interval}s between two validations, or set 'strict': False to skip the scheduler's step."
            )
        logger.warning("lr_scheduler: %s. Its step is skipped", said)
        return None


def _num_groups(scheduler: Any) -> int:
    """The number of parameter groups of its optimizer."""
    return len(getattr(getattr(scheduler, "optimizer", None), "param_groups", ()))
