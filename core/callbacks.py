"""Callbacks of the Trainer."""

from core.trainer.hooks import Callback
from core.trainer.model_checkpoint import ModelCheckpoint
from core.trainer.progress_bar import ProgressBar

__all__ = ["Callback", "ModelCheckpoint", "ProgressBar"]
