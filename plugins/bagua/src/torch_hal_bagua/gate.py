"""Who may touch a module's weights: the thread that trains, or the one that averages; never both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["StepGate"]


class StepGate:
    """Keeps a training step and a change of the weights by another thread apart.

    A step is everything from the first forward pass until the optimizer has applied the gradients. Were the gate open
    between backward and the optimizer's step, an update could be lost: both threads read a weight, and the later to
    write undoes the other's. The other thread goes first where both wait, since between two steps the gate is open for
    an instant only; it holds the gate no longer than a copy of the weights takes, and waits for no process within.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._in_step = False
        self._guests = 0

    def enter_step(self) -> None:
        """The training thread begins a step, or goes on with it."""
        with self._changed:
            if not self._in_step:
                self._changed.wait_for(lambda: self._guests == 0)
                self._in_step = True

    @property
    def is_in_step(self) -> bool:
        """Whether the training thread is within a step."""
        return self._in_step

    def leave_step(self) -> None:
        """The training thread has ended its step."""
        with self._changed:
            self._in_step = False
            self._changed.notify_all()

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Of the other thread: a context in which no step is under way, and none begins."""
        with self._changed:
            self._guests += 1
            try:
                self._changed.wait_for(lambda: not self._in_step)
                yield
            finally:
                self._guests -= 1
                self._changed.notify_all()
