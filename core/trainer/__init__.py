"""Trainer: the front end with the loop, on top of Runtime."""

from .module.datamodule import DataModule
from .module.module import Module
from .trainer import Trainer

__all__ = ["DataModule", "Module", "Trainer"]
