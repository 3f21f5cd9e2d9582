"""The base class of callbacks that write checkpoints."""

from __future__ import annotations

from typing import Any

from ..base import Callback

__all__ = ["Checkpoint"]


class Checkpoint(Callback):
    """A callback that writes checkpoints. It is called after all others, so its checkpoints contain what they did."""

    _given_dirpath: str | None = None
    """The directory that the user named; by default each run has its own."""

    def directory(self, trainer: Any) -> str | None:
        """The directory that the running or the last ``fit`` writes to; ``None`` if none has been run."""
        folder: str | None = self._given_dirpath or trainer._run_folder
        return folder
