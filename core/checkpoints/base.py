"""The CheckpointIO: how a checkpoint's bytes are written, read and removed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from core.checkpoints.commit import remove_committed
from core.errors import ConfigurationError, WrongTypeError

__all__ = ["CheckpointIO", "check_arguments"]


class CheckpointIO(ABC):
    """How a checkpoint's bytes are written, read and removed.

    A Strategy determines the state; a CheckpointIO only stores it. ``path`` names one checkpoint: a directory for
    core's own IO, or a single file for a subclass that writes one. :func:`core.checkpoints.committed_file` yields a
    temporary file and moves it to ``path`` when it is complete; :func:`core.checkpoints.locate` also finds the previous
    checkpoint after a save that was killed halfway::

        class NumpyIO(CheckpointIO):
            def save_checkpoint(self, checkpoint, path, storage_options=None):
                with committed_file(path) as file:
                    numpy.savez(file, **checkpoint)

            def load_checkpoint(self, path, map_location=None):
                return dict(numpy.load(locate(path)))

    A subclass may leave out ``storage_options`` and ``map_location``. Missing parent directories of ``path`` are
    created before it is called.
    """

    is_collective: ClassVar[bool] = False
    """Whether every process calls :meth:`save_checkpoint` and writes its own shards of sharded tensors."""

    @abstractmethod
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write ``checkpoint`` to ``path`` completely, or raise and keep what was there.

        It may return before that, once it no longer reads ``checkpoint``; then :meth:`wait` waits for the rest.

        Raises:
            CheckpointError: The checkpoint cannot be written.
        """

    @abstractmethod
    def load_checkpoint(self, path: str | os.PathLike[str], map_location: Any = None) -> dict[str, Any]:
        """Read the checkpoint at ``path``; ``map_location`` as in :func:`torch.load`.

        Raises:
            CheckpointError: It is absent, uncommitted or damaged.
        """

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove the checkpoint at ``path``, a file or a directory with a manifest, if it exists.

        Raises:
            CheckpointError: It cannot be removed, or is a directory without a manifest.
        """
        remove_committed(path)

    def wait(self) -> None:  # noqa: B027  an optional hook
        """Wait until all writes that :meth:`save_checkpoint` began are committed, for an IO that writes in a thread.

        :meth:`load_checkpoint` and :meth:`remove_checkpoint` of such an IO wait, too.

        Raises:
            CheckpointError: One of them could not be written.
        """

    def teardown(self) -> None:
        """Wait for writes that are still running, and release resources; called at the end of a run."""
        self.wait()


def check_arguments(writer: str, checkpoint: Any, storage_options: Any) -> None:
    """Check the arguments of ``save_checkpoint``. ``writer`` names the CheckpointIO in messages; it takes no options.

    Raises:
        ConfigurationError: ``storage_options`` is not ``None``.
        WrongTypeError: ``checkpoint`` is not a dict.
    """
    if storage_options is not None:
        raise ConfigurationError(f"storage_options={storage_options!r}: {writer} has no storage options. Set None.")
    if not isinstance(checkpoint, dict):
        raise WrongTypeError(f"checkpoint must be a dict, not {type(checkpoint).__name__}.")
