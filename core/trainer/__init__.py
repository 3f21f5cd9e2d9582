"""Trainer: the loop, on top of Runtime."""

from core.trainer.checkpointing import ModelCheckpoint
from core.trainer.hooks import Callback
from core.trainer.module import Module
from core.trainer.progress import ProgressBar
from core.trainer.trainer import Logger, Trainer

__all__ = ["Callback", "Logger", "ModelCheckpoint", "Module", "ProgressBar", "Trainer"]
