"""Trainer: the front end with the loop, on top of Runtime."""

from core.trainer.module.datamodule import DataModule
from core.trainer.module.module import Module
from core.trainer.trainer import Trainer

__all__ = ["DataModule", "Module", "Trainer"]
