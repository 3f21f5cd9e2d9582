"""The CheckpointIO: how a checkpoint's bytes are written, read and removed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ..errors import ConfigurationError, WrongTypeError
from ..utilities.renamed import Renaming
from .locations import remove_committed


class CheckpointIO(Renaming, ABC):
    """How a checkpoint's bytes are written, read and removed.

    A Strategy determines the state; a CheckpointIO only stores it. ``path`` names one checkpoint: a single file, or a
    directory of files. :func:`core.checkpoints.committed_file` yields a temporary file and moves it to ``path`` when it
    is complete; :func:`core.checkpoints.local_copy` also finds the previous checkpoint after a save that was killed
    halfway, and both take URLs::

        class NumpyIO(CheckpointIO):
            def save_checkpoint(self, checkpoint, path, storage_options=None):
                with committed_file(path) as file:
                    numpy.savez(file, **checkpoint)

            def load_checkpoint(self, path, map_location=None):
                with local_copy(path) as file:
                    return dict(numpy.load(file))

    A subclass may leave out ``storage_options`` and ``map_location``. Missing parent directories of ``path`` are
    created before it is called, and removed if it raises.
    """

    is_collective: bool = False
    """Whether every process calls :meth:`save_checkpoint` and writes its own shards of sharded tensors."""

    keeps_views: bool = True
    """Whether two views of the same memory still share it after loading; a format without strides stores each alone.

    Tied weights, which are the same tensor twice, are tied again in any case.
    """

    makes_directories: bool = False
    """Whether :meth:`save_checkpoint` makes missing parent directories itself, as one that writes in a thread does."""

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

        Links are not followed.

        Raises:
            CheckpointError: It cannot be removed, or is a directory without a manifest.
        """
        remove_committed(path)

    def wait(self) -> None:  # an optional hook
        """Wait until all writes that :meth:`save_checkpoint` began are committed, for an IO that writes in a thread.

        :meth:`load_checkpoint` of such an IO waits, too. Its :meth:`remove_checkpoint` may return before, and removes
        the checkpoint when the others are committed.

        Raises:
            CheckpointError: One of them could not be written.
        """

    def check(self) -> None:  # an optional hook
        """Raise the error of a write in a thread that has failed; called before each training step, so it is quick.

        Raises:
            CheckpointError: A write has failed, and no call has raised it yet.
        """

    def when_committed(self, function: Callable[[], object]) -> None:
        """Call ``function``, which takes away what is needed until all saves that were begun are committed.

        An IO that writes in a thread calls it there, and does not call it if the write fails.
        """
        function()

    def connect(self, preferred: str) -> None:  # an optional hook
        """Called once, before all other methods, if a strategy uses this object.

        Args:
            preferred: The name of the CheckpointIO whose format suits the strategy, such as ``"sharded"``.
        """

    def check_checkpoint(  # an optional hook
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Raise what :meth:`save_checkpoint` would raise because of its arguments, without writing."""

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
