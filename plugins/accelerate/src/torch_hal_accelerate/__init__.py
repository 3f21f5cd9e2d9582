"""Accelerate, and the Trainers of Transformers and TRL, on what torch-hal plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names
from torch_hal_accelerate.activation import activate, deactivate

if TYPE_CHECKING:
    from torch_hal_accelerate.accelerator import Accelerator

__all__ = ["Accelerator", "activate", "deactivate"]

# Only when asked for: importing Accelerate takes a second or more.
__getattr__, __dir__ = lazy_names(__name__, {"Accelerator": "torch_hal_accelerate.accelerator"})
