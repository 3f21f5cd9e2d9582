"""The base class of callbacks that write checkpoints."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from ..base import Callback

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

__all__ = ["Checkpoint"]


class Checkpoint(Callback):
    """A callback that writes checkpoints. It is called after all others, so its checkpoints contain what they did."""

    foreign_arguments = MappingProxyType(
        {
            "filepath": "Set dirpath= to the directory, and filename= to the name.",
            "period": "Set every_n_epochs=.",
            "every_n_val_epochs": "Set every_n_epochs=.",
            "prefix": "Begin filename= with it.",
            "save_best_only": "Set monitor= to the metric, and save_top_k=1.",
            "save_total_limit": "Set save_top_k=; monitor='step', mode='max' keeps the newest.",
        }
    )
    _given_dirpath: str | None = None
    """The directory that the user named; by default each run has its own."""

    def directory(self, trainer: Trainer) -> str | None:
        """The directory that the running or the last ``fit`` writes to; ``None`` if none has been run."""
        folder: str | None = self._given_dirpath or trainer.run.folder
        return folder
