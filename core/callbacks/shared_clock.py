"""Time limits that all processes of a run reach at the same step, although their clocks differ."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["SharedClock"]


class SharedClock:
    """Tells all processes at the same step that a time has passed, by the clock of process 0.

    A collective in each step would slow the run down. So process 0 measures how long a step takes, and tells the others
    at which step to ask next: half of the remaining steps later.

    Args:
        seconds: The time.
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
