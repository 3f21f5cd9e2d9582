"""Trainer: the front end with the loop, on top of Runtime."""

from core.trainer.datamodule import DataModule
from core.trainer.hooks import Callback
from core.trainer.metrics import Logger
from core.trainer.model_checkpoint import ModelCheckpoint
from core.trainer.module import Module
from core.trainer.progress_bar import ProgressBar
from core.trainer.trainer import Trainer

__all__ = ["Callback", "DataModule", "Logger", "ModelCheckpoint", "Module", "ProgressBar", "Trainer"]
