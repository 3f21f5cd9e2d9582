"""Mutual exclusion of the training thread and the averaging thread on a module's weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["StepGate"]


class StepGate:
    """Ensures that no other thread changes the weights during a training step.

    A step lasts from the first forward pass until the optimizer has applied the gradients. If the gate were open
    between backward and the optimizer's step, an update could be lost: both threads read a weight, and the later write
    overwrites the earlier one. If both threads wait, the other thread goes first, since the gate is open only for an
    instant between two steps. It holds the gate only while it copies the weights, and waits for no process meanwhile.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._in_step = False
        self._guests = 0

    def enter_step(self) -> None:
        """Called by the training thread when it begins or continues a step."""
        with self._changed:
            if not self._in_step:
                self._changed.wait_for(lambda: self._guests == 0)
                self._in_step = True

    @property
    def is_in_step(self) -> bool:
        """Whether the training thread is within a step."""
        return self._in_step

    def leave_step(self) -> None:
        """Called by the training thread when its step has ended."""
        with self._changed:
            self._in_step = False
            self._changed.notify_all()

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """For the averaging thread: a context in which no step runs or begins."""
        with self._changed:
            self._guests += 1
            try:
                self._changed.wait_for(lambda: not self._in_step)
                yield
            finally:
                self._guests -= 1
                self._changed.notify_all()
