"""The Store: where a checkpoint is, as a directory of this machine or as objects under a URL; reading it undisturbed.

A read while another process saves to the same path gets the old checkpoint or the new one, not parts of both.
"""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from ..errors import CoreError
from .agreement import GatherObject, run_on_each_rank
from .commit import local_path, locate
from .directories import identity
from .manifest import Manifest, UnreadableError

T = TypeVar("T")


class Store(ABC):
    """One path, at which there is a checkpoint, a folder of checkpoints, or nothing yet.

    Whoever writes or reads a checkpoint does it in a directory of this machine, which the store hands out. A path in a
    file system is that directory; to and from a URL, files are copied.
    """

    @abstractmethod
    def committed(self, *, directory: bool) -> AbstractContextManager[Path]:
        """A temporary file or directory, which is committed when the block ends without an exception.

        Raises:
            CheckpointError: It cannot be written, or what is at the path is not a checkpoint.
        """

    @abstractmethod
    def committed_together(self, gather: GatherObject) -> AbstractContextManager[Path]:
        """Like :meth:`committed`, for a directory that all processes write to. Every process must call this method.

        Rank 0 writes the manifest. The directory may differ between processes.
        """

    @abstractmethod
    def local_copy(self) -> AbstractContextManager[Path]:
        """The committed checkpoint as a file or directory of this machine, as long as the block lasts.

        Raises:
            CheckpointError: There is none, or it cannot be read.
        """

    @abstractmethod
    def copied_together(self, gather: GatherObject | None) -> AbstractContextManager[Path]:
        """Like :meth:`local_copy`, of one checkpoint in every process; all call it, and leave the block together."""

    @abstractmethod
    def read(self, function: Callable[[Path], T]) -> T:
        """What ``function`` returns for the checkpoint's directory, which is not replaced meanwhile.

        Raises:
            CoreError: From ``function``; or there is no checkpoint.
        """

    @abstractmethod
    def read_together(self, verify: Callable[[Path], None], function: Callable[[Path], T]) -> T:
        """Like :meth:`read`, called by every process: all read the same checkpoint.

        ``verify`` and then ``function`` are called in every process; an error in one is raised in all.
        """

    @abstractmethod
    def manifest(self) -> Manifest:
        """The manifest of the committed checkpoint, whose files have the right sizes.

        Raises:
            CheckpointError: There is none, it is damaged or in a newer format.
        """

    @abstractmethod
    def remove(self) -> None:
        """Remove the checkpoint or file, if there is one; files that are not the checkpoint's stay.

        Raises:
            CheckpointError: It cannot be removed, or is not a checkpoint.
        """

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a checkpoint or a file with this name, be it damaged."""

    @abstractmethod
    def latest(self) -> str | os.PathLike[str] | None:
        """The checkpoint in this folder that was saved last; ``None`` if there is none.

        Raises:
            CheckpointError: The folder cannot be read, or the last one may be in a newer format.
        """

    @abstractmethod
    def newest_whole(self) -> Any:
        """The newest whole checkpoint in the same folder, other than this one; ``None`` if there is none."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of what is in this folder; none if it does not exist.

        Raises:
            CheckpointError: It cannot be read.
        """

    def next_number(self, prefix: str) -> int:
        """One more than the largest number that follows ``prefix`` in the names in this folder."""
        name = re.compile(rf"{re.escape(prefix)}(\d+)")
        return 1 + max((int(found[1]) for found in map(name.fullmatch, self.names()) if found), default=-1)

    @abstractmethod
    def new_folder(self, prefix: str) -> str:
        """Make a folder in this one that no other process gets: ``prefix`` with the next number.

        Raises:
            CheckpointError: It cannot be made.
        """


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
            "Save each checkpoint under a different name, or read this one after that process has finished.",
        )


def read_undisturbed(path: str | os.PathLike[str], read: Callable[[Path], T]) -> T:
    """Return what ``read`` returns for the checkpoint's directory. If the checkpoint was replaced, call it again.

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
