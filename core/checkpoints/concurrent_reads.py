"""Reading a checkpoint while another process saves to the same path: the old one or the new one, not parts of both."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..errors import CoreError
from .agreement import run_on_each_rank
from .commit import local_path, locate
from .directories import identity
from .manifest import UnreadableError

__all__ = ["Attempts", "read_together_undisturbed", "read_undisturbed"]

T = TypeVar("T")

ATTEMPTS = 10
"""The least number of attempts to read something that changes. Each may take minutes for a large checkpoint."""
SECONDS = 30.0
"""The least time for these attempts. Many fail where small checkpoints are saved all the time."""


class Attempts:
    """Counts the attempts to read something that other processes change.

    Args:
        changed: What each of them did, such as ``"checkpoint … was replaced"``.
        advice: What to do about it.
    """

    def __init__(self, changed: str, advice: str) -> None:
        self._changed, self._advice = changed, advice
        self._begin = time.monotonic()
        self._count = 0

    def begin(self) -> None:
        """Begin the next one.

        Raises:
            UnreadableError: There have been enough: what is there is not known.
        """
        seconds = time.monotonic() - self._begin
        if self._count >= ATTEMPTS and seconds >= SECONDS:
            raise UnreadableError(
                f"{self._changed} during each of {self._count} attempts to read it in {seconds:.0f} s. {self._advice}"
            )
        self._count += 1

    @classmethod
    def at_checkpoint(cls, path: str | os.PathLike[str]) -> Attempts:
        """To read the checkpoint at ``path``, which other processes replace."""
        return cls(
            f"checkpoint {os.fsdecode(path)} was replaced by another process",
            "Save each checkpoint there under a name of its own, or read this one when that process has ended.",
        )


def read_undisturbed(path: str | os.PathLike[str], read: Callable[[Path], T]) -> T:
    """What ``read`` returns for the checkpoint's directory; called again if the checkpoint was replaced meanwhile.

    Raises:
        CoreError: From ``read``, of a checkpoint that was not replaced; or it is replaced again and again.
    """
    attempts = Attempts.at_checkpoint(path)
    while True:
        attempts.begin()
        before = _state(path)
        try:
            result = read(before[0])
        except CoreError:
            if _state(path) == before:
                raise
        else:
            # It may have been set aside, but it must be the same.
            if _state(path)[1] == before[1]:
                return result


def read_together_undisturbed(
    path: str | os.PathLike[str], verify: Callable[[Path], None], read: Callable[[Path], T]
) -> T:
    """Like :func:`read_undisturbed`, called by every process: all read the same checkpoint.

    ``verify`` and then ``read`` are called in every process; an error in one is raised in all.
    """
    attempts = Attempts.at_checkpoint(path)
    while True:
        own = _state(path)

        def begin() -> tuple[Path, str | None]:
            attempts.begin()  # if one process gives up, all do
            return own  # noqa: B023  called at once

        before = run_on_each_rank(begin)
        results: list[T] = []
        try:
            run_on_each_rank(lambda: verify(own[0]))  # noqa: B023
            run_on_each_rank(lambda: results.append(read(own[0])))  # noqa: B023
        except CoreError:
            if run_on_each_rank(lambda: _state(path)) == before:
                raise
            continue
        after = run_on_each_rank(lambda: _state(path))
        if len({state[1] for state in (*before, *after)}) == 1:
            return results[0]


def _state(path: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """Where the checkpoint is, and which."""
    for _ in range(ATTEMPTS):
        directory = locate(path)
        if (found := identity(directory)) is not None or directory == locate(path) == local_path(path):
            break  # else it was set aside, and gone from there before it was read
    return directory, found
