"""Callbacks: what acts beside the Module."""

from core.trainer.checkpointing import ModelCheckpoint
from core.trainer.hooks import Callback
from core.trainer.progress import ProgressBar

__all__ = ["Callback", "ModelCheckpoint", "ProgressBar"]
