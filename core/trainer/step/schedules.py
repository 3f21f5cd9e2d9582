"""Times at which learning rate schedulers are stepped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ...errors import ConfigurationError, quoted
from ...strategies.base import Strategy
from ..metrics.metric_log import MetricLog
from ..module.hooks import overridden
from ..module.module import Module
from .configured_optimizers import Schedule

__all__ = ["Schedules"]

logger = logging.getLogger(__name__)


class Schedules:
    """Steps the schedulers of a fit.

    Args:
        schedules: What is stepped, and how.
        module: Its ``lr_scheduler_step`` is called if it is overridden.
        metric_log: Has the metrics that schedulers monitor.
        strategy: Of the run.
    """

    def __init__(
        self, schedules: Sequence[Schedule], module: Module, metric_log: MetricLog, strategy: Strategy
    ) -> None:
        self._metric_log, self._strategy = metric_log, strategy
        self._step: Callable[[Any, Any], None] = overridden(module, Module, "lr_scheduler_step") or step_scheduler
        self._plain = {interval: _due(schedules, interval, False) for interval in ("epoch", "step")}
        self._monitoring = {interval: _due(schedules, interval, True) for interval in ("epoch", "step")}

    def has(self, interval: str) -> bool:
        """Whether any scheduler is stepped at this interval."""
        return bool(self._plain[interval] or self._monitoring[interval])

    def step(self, interval: str, count: int) -> None:
        """Step those of ``interval`` that monitor nothing and whose frequency divides ``count``.

        Args:
            interval: ``"epoch"`` or ``"step"``.
            count: The number of epochs or optimizer steps so far.
        """
        for schedule in self._plain[interval]:
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

    def _metric(self, schedule: Schedule) -> Tensor | None:
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
                "of epochs between two validations, or set 'strict': False to skip the scheduler's step."
            )
        logger.warning("lr_scheduler: %s. Its step is skipped", said)
        return None


def step_scheduler(scheduler: Any, metric: Any) -> None:
    """Step ``scheduler``, with ``metric`` unless it is ``None``."""
    if metric is None:
        scheduler.step()
    else:
        scheduler.step(metric)


def _due(schedules: Sequence[Schedule], interval: str, monitoring: bool) -> list[Schedule]:
    return [one for one in schedules if one.interval == interval and one.reduce_on_plateau == monitoring]
