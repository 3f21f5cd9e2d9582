"""Trainer: the front end with the loop, on top of Runtime."""

from core.trainer.datamodule import DataModule
from core.trainer.module import Module
from core.trainer.trainer import Trainer

__all__ = ["DataModule", "Module", "Trainer"]
