"""The base class of callbacks that write checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import Callback

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

__all__ = ["Checkpoint"]


class Checkpoint(Callback):
    """A callback that writes checkpoints. It is called after all others, so its checkpoints contain what they did."""

    _given_dirpath: str | None = None
    """The directory that the user named; by default each run has its own."""

    def directory(self, trainer: Trainer) -> str | None:
        """The directory that the running or the last ``fit`` writes to; ``None`` if none has been run."""
        folder: str | None = self._given_dirpath or trainer.run.folder
        return folder
