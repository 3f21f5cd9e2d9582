"""The CheckpointIO: how a checkpoint's bytes are written, read and removed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from core.errors import ConfigurationError, WrongTypeError

__all__ = ["CheckpointIO", "check_arguments"]


class CheckpointIO(ABC):
    """How a checkpoint's bytes are written, read and removed.

    A Strategy says what the state is; a CheckpointIO only lays it down. ``path`` names one checkpoint: core's own IO
    makes it a directory, a subclass may as well write a single file. :func:`core.checkpoints.committed_file` gives it
    a place to write that file, and commits it when all is written; :func:`core.checkpoints.locate` also finds what a
    save that died half-way has set aside::

        class NumpyIO(CheckpointIO):
            def save_checkpoint(self, checkpoint, path, storage_options=None):
                with committed_file(path) as file:
                    numpy.savez(file, **checkpoint)

            def load_checkpoint(self, path, map_location=None):
                return dict(numpy.load(locate(path)))

            def remove_checkpoint(self, path):
                remove_committed(path)
    """

    is_collective: ClassVar[bool] = False
    """Whether every process calls :meth:`save_checkpoint`, each writing what it has of divided tensors."""

    @abstractmethod
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write ``checkpoint`` so that ``path`` afterwards holds all of it, or raise and leave what was there.

        Raises:
            CheckpointError: The checkpoint cannot be written.
        """

    @abstractmethod
    def load_checkpoint(self, path: str | os.PathLike[str], map_location: Any = None) -> dict[str, Any]:
        """Read the checkpoint at ``path``; ``map_location`` as in :func:`torch.load`.

        Raises:
            CheckpointError: It is absent, uncommitted or damaged.
        """

    @abstractmethod
    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove the checkpoint at ``path``; one that is not there is no error."""

    def teardown(self) -> None:  # noqa: B027 - most have nothing to finish
        """Finish what is still being written."""


def check_arguments(writer: str, checkpoint: Any, storage_options: Any) -> None:
    """Refuse what ``writer``, for messages, cannot save: options, of which it takes none, and what is no dict.

    Raises:
        ConfigurationError: There are options.
        WrongTypeError: ``checkpoint`` is no dict.
    """
    if storage_options is not None:
        raise ConfigurationError(f"storage_options={storage_options!r}: {writer} takes none. Valid: None.")
    if not isinstance(checkpoint, dict):
        raise WrongTypeError(f"checkpoint is a {type(checkpoint).__name__}: expected a dict.")
