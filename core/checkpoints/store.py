"""The Store: where a checkpoint is, as a directory of this machine or as objects under a URL."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from .agreement import GatherObject
from .manifest import Manifest

__all__ = ["Store"]

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
