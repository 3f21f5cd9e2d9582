"""Trainer: the front end with the loop, on top of Runtime."""

from .module.datamodule import DataModule
from .module.hooks import STEP_OUTPUT
from .module.module import Module
from .trainer import Trainer

__all__ = ["STEP_OUTPUT", "DataModule", "Module", "Trainer"]
