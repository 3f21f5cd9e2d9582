"""The Runtimes of this process, for functions that are given none: ``get_logger``, ``find_executable_batch_size``.

They are referred to weakly. Such a function reads from the last one which process this is, and waits with it for the
others; no setting passes from one Runtime to another here.
"""

from __future__ import annotations

from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["Turn", "finished_runs", "last_run", "note_run"]

_turns = count()


class Turn:
    """When a Runtime was made or started, among all of this process; the one of the latest turn is the last."""

    def __init__(self) -> None:
        self.take()

    def take(self) -> None:
        """The Runtime is the last one from now on."""
        self.number: int | None = next(_turns)
        self.is_finished = False
        """Whether the script has said that training has ended; it may still save."""

    def give_up(self) -> None:
        """The Runtime was torn down, and is none of those that are looked for."""
        self.number = None
        self.is_finished = False

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()  # another process counts by itself


_runs: WeakKeyDictionary[Any, Turn] = WeakKeyDictionary()
"""The Runtimes of this process, each with its turn."""


def note_run(run: Any, turn: Turn) -> None:
    """Let :func:`last_run` know ``run``, which takes its ``turn`` when its processes have started."""
    _runs[run] = turn


def last_run() -> Any:
    """The last Runtime that was made or started, and not torn down; ``None`` without one."""
    runs = [(turn.number, run) for run, turn in [*_runs.items()] if turn.number is not None]
    return max(runs, key=lambda each: each[0])[1] if runs else None


def finished_runs() -> list[Any]:
    """The Runtimes that have finished training and were not torn down."""
    return [run for run, turn in [*_runs.items()] if turn.is_finished]
