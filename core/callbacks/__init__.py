"""Callbacks of the Trainer: their base class, and those that core brings, one in each file."""

from core.callbacks.base import Callback
from core.callbacks.model_checkpoint import ModelCheckpoint
from core.callbacks.progress_bar import ProgressBar

__all__ = ["Callback", "ModelCheckpoint", "ProgressBar"]
