"""The times at which a fit validates."""

from __future__ import annotations

import math

from ...callbacks.agreement import SharedClock
from ...errors import ConfigurationError
from ..run_context import RunContext
from ..settings import Settings

__all__ = ["ValidationTimes"]


class ValidationTimes:
    """When validation is due in the running epoch.

    Args:
        run: The run.
        num_batches: The number of batches of the epoch; infinite if it is not known.
        is_possible: Whether there is validation at all.
        clock: What counts the time since the last validation, where that decides.
    """

    def __init__(self, run: RunContext, num_batches: float, is_possible: bool, clock: SharedClock | None) -> None:
        settings, self._progress = run.settings, run.progress
        self._strategy, self._clock = run.runtime.strategy, clock
        self._asked_at, self._is_time = -1, False
        epochs = settings.check_val_every_n_epoch
        self.is_possible = is_possible and (epochs is None or (self._progress.epoch + 1) % epochs == 0)
        """Whether this epoch is one with validation."""
        self._every = _interval(settings, num_batches) if self.is_possible else None
        self._before = self._progress.batches_before if epochs is None else 0

    @property
    def batches_left(self) -> int | None:
        """The number of batches until validation is due; ``None`` until the end of the epoch."""
        progress, every = self._progress, self._every
        if self._clock is not None and self.is_possible:
            return self._clock.steps_left(progress.total_batches, self._strategy)
        if every is None:
            return None
        since = (self._before + progress.batch) % every
        # A run that is resumed may be where validation is due and not yet done.
        return 0 if not since and 0 < progress.batch != progress.validated else every - since

    def is_due(self, is_last: bool) -> bool:
        """Whether validation is due after the newest batch that was trained on.

        Args:
            is_last: Whether that batch is the last of the epoch.
        """
        progress, every = self._progress, self._every
        if self._clock is not None:
            return self.is_possible and self._is_time_over(self._clock)
        if every is None:
            return self.is_possible and is_last
        return progress.batch > 0 and (self._before + progress.batch) % every == 0

    def _is_time_over(self, clock: SharedClock) -> bool:
        """Whether the time is over after the newest batch; asked once, as processes may ask each other."""
        now = self._progress.total_batches
        if self._asked_at != now:
            self._asked_at, self._is_time = now, clock.is_due(now, self._strategy)
        return self._is_time

    def restart(self) -> None:
        """Count the time from now on: a validation is over."""
        if self._clock is not None:
            self._clock.restart(self._progress.total_batches)


def _interval(settings: Settings, num_batches: float) -> int | None:
    """The number of training batches from one validation to the next; ``None`` for one at the end of an epoch.

    Args:
        settings: Of the run.
        num_batches: The number of batches of the epoch; infinite if it is not known.

    Raises:
        ConfigurationError: The interval does not fit the number of batches.
    """
    interval = settings.val_check_interval
    if isinstance(interval, int):
        if interval > num_batches and settings.check_val_every_n_epoch is not None:
            raise ConfigurationError(
                f"val_check_interval={interval}: an epoch has only {num_batches} batches, so validation would never "
                "run. Give a smaller number; or set check_val_every_n_epoch=None to count batches over all epochs, or "
                "limit_val_batches=0 for no validation."
            )
        return interval
    if interval == 1.0 or not isinstance(interval, float):  # a time is no number of batches
        return None
    if math.isinf(num_batches):
        raise ConfigurationError(
            f"val_check_interval={interval}: the training loader has no length, so there is no fraction of an epoch. "
            "Give a number of batches as an integer."
        )
    return max(int(num_batches * interval), 1)
