"""Callbacks of the Trainer: their base class, and those that core brings, one in each file."""

from __future__ import annotations

from core.lazy import lazy_names

TYPE_CHECKING = False  # true for type checkers; importing typing would take a quarter of a listing's time
if TYPE_CHECKING:
    from core.callbacks.base import Callback
    from core.callbacks.checkpoint import Checkpoint
    from core.callbacks.early_stopping import EarlyStopping
    from core.callbacks.model_checkpoint import ModelCheckpoint
    from core.callbacks.progress_bar import ProgressBar

__all__ = ["Callback", "Checkpoint", "EarlyStopping", "ModelCheckpoint", "ProgressBar"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Callback": "core.callbacks.base",
        "Checkpoint": "core.callbacks.checkpoint",
        "EarlyStopping": "core.callbacks.early_stopping",
        "ModelCheckpoint": "core.callbacks.model_checkpoint",
        "ProgressBar": "core.callbacks.progress_bar",
    },
)
