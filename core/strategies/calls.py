"""The collectives that a process has begun: so that another one sees whether it is in a different one, or only late.

A collective waits for all processes, in C++ code that no exception reaches. Nothing is exchanged for each of them: a
process counts those that its strategy begins. One that has been in the same for some seconds asks the others how far
they are (``Stacks`` in :mod:`core.strategies.failures.stack_exchange`). Each process begins the same collectives in
the same order, so two counts show whether a process is in another one, or only late, which is no fault.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from attrs import field, frozen

from ..utilities.torch_private import sequence_number

__all__ = ["NOTHING", "Begun", "Calls"]

KEPT = 8
"""The names of so many newest collectives are kept: on accelerators, Python runs ahead of the collectives."""


class Calls:
    """Counts the collectives that a strategy begins in this process's main thread."""

    def __init__(self) -> None:
        self._newest: deque[tuple[int, str]] = deque([(0, "")], KEPT)
        self._waits_for: int | None = None

    def begin(self, name: str) -> None:
        """Count one; called right before it begins."""
        self._newest.append((self._newest[-1][0] + 1, name))

    @contextmanager
    def waiting_for(self, rank: int) -> Iterator[None]:
        """Wait for a note of process ``rank`` in the store, which is no collective."""
        self._waits_for = rank
        try:
            yield
        finally:
            self._waits_for = None

    def begun(self) -> Begun:
        """What this process has begun; for any thread."""
        # The group's number first: a collective that it counts was counted here before.
        sequence = _sequence()
        newest = self._newest.copy()
        return Begun(newest[-1][0], tuple(newest), sequence, self._waits_for)


def _pairs(given: Iterable[Sequence[Any]]) -> tuple[tuple[int, str], ...]:
    return tuple((number, name) for number, name in given)


@frozen
class Begun:
    """How far a process is."""

    count: int = 0
    """The number of collectives that its strategy has begun."""
    newest: tuple[tuple[int, str], ...] = field(default=(), converter=_pairs)
    """The number and name of the last ones."""
    sequence: int | None = None
    """The number that the process group itself has begun, such as those of a backward pass; ``None`` if unknown."""
    waits_for: int | None = None
    """The rank of the process for whose note it waits, as long as it takes."""

    def is_ahead_of(self, other: Begun) -> bool:
        """Whether it has begun a collective that the other process has not."""
        if self.sequence is None or other.sequence is None:
            return self.count > other.count
        return self.count > other.count or self.sequence > other.sequence


NOTHING = Begun()
"""Of a process that has begun none."""


def _sequence() -> int | None:
    if "torch.distributed.pipelining" in sys.modules:  # what one process sends to another is counted too
        return None
    with suppress(AttributeError, RuntimeError, ValueError):  # no group; or its backend does not count
        return sequence_number()
    return None
