"""Decisions that are the same in all processes: made by process 0, by its clock, or by the number of the step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from ..checkpoints.agreement import decide_on_rank_zero
from ..errors import ConfigurationError, nearest, quoted

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

T = TypeVar("T")


def decide_in_process_zero(trainer: Trainer, decide: Callable[[], T]) -> T:
    """Return to every process what ``decide`` returns in process 0. Every process calls this.

    Raises:
        CoreError: It raised one; raised in every process.
    """
    strategy = trainer.strategy
    if strategy.world_size == 1:
        return decide()
    trainer.metric_log.exchange()  # what it decides by
    return decide_on_rank_zero(
        decide, strategy.is_global_zero, strategy.broadcast, lambda error: ConfigurationError(str(error))
    )


def not_logged(owner: str, monitor: str, logged: Iterable[str], remedy: str) -> ConfigurationError:
    """The error for a metric that a callback monitors and the run has not logged."""
    names = sorted(logged)
    return ConfigurationError(
        f"{owner}(monitor={monitor!r}): it has not been logged.{nearest(monitor, names)} Logged: "
        f"{quoted(names) if names else 'nothing'}. {remedy}"
    )


class EveryNSteps:
    """Tells after which batches something is due that is due at every n-th optimizer step.

    A batch may take no step, and one of a module that steps its optimizers itself several: so what counts is whether
    a multiple of n was reached since the last time that this was asked.
    """

    def __init__(self) -> None:
        self.step = 0
        """The step at which this was asked last."""

    def restart(self, step: int) -> None:
        """Begin to count at ``step``."""
        self.step = step

    def is_due(self, step: int, every: int) -> bool:
        """Whether a multiple of ``every`` was reached at ``step``, or since the last call."""
        before, self.step = self.step, step
        return step // every > before // every


class SharedClock:
    """Tells all processes at the same step that a time has passed, by the clock of process 0.

    A collective in each step would slow the run down. So process 0 measures how long a step takes, and tells the others
    at which step to ask next: half of the remaining steps later.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = self._asked_at = time.monotonic()
        self._step = self._next = 0

    def restart(self, step: int) -> None:
        """Begin to measure at ``step``."""
        self._start = self._asked_at = time.monotonic()
        self._step, self._next = step, step + 1

    @property
    def elapsed(self) -> float:
        """Seconds since the start in this process."""
        return time.monotonic() - self._start

    def steps_left(self, step: int, strategy: Any) -> int:
        """For how many steps after ``step`` nothing has to be asked; the same in every process."""
        return 1 if strategy.world_size == 1 else max(self._next - step, 1)

    def is_due(self, step: int, strategy: Any) -> bool:
        """Whether the time has passed; every process calls it after each ``step``."""
        if strategy.world_size == 1:
            return self.elapsed >= self.seconds
        if step < self._next:
            return False
        left = self.seconds - self.elapsed
        each = max(self.elapsed / max(step - self._step, 1), 1e-9)
        left, skipped = strategy.broadcast((left, max(int(left / each / 2), 1)))
        self._next = step + skipped
        return bool(left <= 0)
