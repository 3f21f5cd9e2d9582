"""Measures the time of a run, and ends it after a given time."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, nearest, quoted
from .agreement import SharedClock, decide_in_process_zero
from .base import Callback

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

logger = logging.getLogger(__name__)

STAGES = ("train", "validate", "sanity_check", "test", "predict")


class Timer(Callback):
    """Measures how long each stage takes, and ends ``fit`` after ``duration``, by the clock of process 0.

    The time that a resumed run has taken before counts. Where none is left, ``fit`` ends before its first step.

    Args:
        duration: The time for training, as a ``timedelta``, as ``"DD:HH:MM:SS"``, or as keyword arguments of
            ``timedelta`` in a dict; ``None`` only measures.
        interval: ``"step"`` ends after the running optimizer step, ``"epoch"`` after the running epoch.
        verbose: Log the end at level INFO.

    Raises:
        ConfigurationError: ``duration`` or ``interval`` is something else.
    """

    def __init__(
        self,
        duration: str | timedelta | dict[str, int] | None = None,
        interval: str = "step",
        verbose: bool = True,
    ) -> None:
        if interval not in ("step", "epoch"):
            raise ConfigurationError(f"interval={interval!r}: must be 'step' or 'epoch'.")
        self._duration = read_duration("duration", duration)
        self.interval = interval
        self.verbose = verbose
        if self._duration is None or interval == "epoch":
            self.idle_hooks = frozenset({"on_train_batch_end"})
        self._reset()

    def _reset(self) -> None:
        self._start: dict[str, float] = {}
        self._end: dict[str, float] = {}
        self._before = dict.fromkeys(STAGES, 0.0)
        self._clock: SharedClock | None = None

    def start_time(self, stage: str = "train") -> float | None:
        """When ``stage`` began, by :func:`time.monotonic`; ``None`` if it has not.

        Args:
            stage: ``"train"``, ``"validate"``, ``"sanity_check"``, ``"test"`` or ``"predict"``.

        Raises:
            ConfigurationError: It is something else.
        """
        return self._start.get(_checked(stage))

    def end_time(self, stage: str = "train") -> float | None:
        """When ``stage`` ended; ``None`` if it has not."""
        return self._end.get(_checked(stage))

    def time_elapsed(self, stage: str = "train") -> float:
        """Seconds that ``stage`` has taken, in the resumed run included."""
        start = self._start.get(_checked(stage))
        return self._before[stage] + (0.0 if start is None else self._end.get(stage, time.monotonic()) - start)

    def time_remaining(self, stage: str = "train") -> float | None:
        """Seconds that are left of ``duration``; ``None`` without one."""
        elapsed = self.time_elapsed(stage)
        return None if self._duration is None else self._duration - elapsed

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Forget an earlier run."""
        if stage == "fit":
            self._reset()

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin to measure."""
        self._begin("train")
        if self._duration is not None:
            left = self._duration - self._before["train"]
            self._clock = SharedClock(left)
            self._clock.restart(trainer.global_step)
            if decide_in_process_zero(trainer, lambda: left <= 0):  # a script may compute it: each process another
                self._stop(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin to measure."""
        self._begin(str(trainer.run.stage))

    on_test_start = on_predict_start = on_validation_start

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End measuring."""
        self._end[str(trainer.run.stage)] = time.monotonic()

    on_train_end = on_test_end = on_predict_end = on_validation_end

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the fit, if the time is over."""
        if not trainer.progress.is_accumulating:
            self._check(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End the fit, if the time is over."""
        self._check(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The time that each stage has taken."""
        return {"time_elapsed": {stage: self.time_elapsed(stage) for stage in STAGES}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self._before = {**dict.fromkeys(STAGES, 0.0), **state_dict["time_elapsed"]}

    def _begin(self, stage: str) -> None:
        if stage in self._end:  # validation runs several times
            self._before[stage] = self.time_elapsed(stage)
        self._end.pop(stage, None)
        self._start[stage] = time.monotonic()

    def _check(self, trainer: Trainer) -> None:
        # Not should_stop, which one process may set alone: all ask the clock.
        if (
            self._clock is None
            or trainer.progress.all_stop
            or not self._clock.is_due(trainer.global_step, trainer.strategy)
        ):
            return
        self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        trainer.should_stop = trainer.progress.all_stop = True
        if self.verbose and trainer.is_global_zero:
            logger.info("Timer: the run has taken %s and ends", timedelta(seconds=int(self.time_elapsed())))


def _checked(stage: str) -> str:
    if stage not in STAGES:
        raise ConfigurationError(f"stage={stage!r}: must be a stage of a run. Valid: {quoted(STAGES)}.")
    return stage


def read_duration(name: str, duration: Any) -> float | None:
    """The seconds of ``duration``; see :class:`Timer`.

    Raises:
        ConfigurationError: It is not a duration.
    """
    if duration is None:
        return None
    if isinstance(duration, timedelta):
        return _not_negative(name, duration)
    if isinstance(duration, str):
        found = re.fullmatch(r"(\d+):(\d\d):(\d\d):(\d\d)", duration.strip())
        if found:
            days, hours, minutes, seconds = map(int, found.groups())
            return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
    elif isinstance(duration, Mapping):
        try:
            return _not_negative(name, timedelta(**duration))
        except TypeError as error:
            units = ("weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds")
            unknown = next((unit for unit in duration if unit not in units), None)
            problem = str(error) if unknown is None else f"there is no {unknown!r}"
            remedy = nearest(str(unknown), units) or f" Valid: {quoted(units)}, with numbers."
            raise ConfigurationError(f"{name}={duration!r}: {problem}.{remedy}") from None
    raise ConfigurationError(
        f"{name}={duration!r}: must be a datetime.timedelta, a text DD:HH:MM:SS such as '00:12:00:00', a dict with "
        "arguments of timedelta, or None."
    )


def _not_negative(name: str, duration: timedelta) -> float:
    seconds = duration.total_seconds()
    if seconds < 0:
        raise ConfigurationError(f"{name}: {seconds:g} seconds are less than none. Give the time that fit may take.")
    return seconds
