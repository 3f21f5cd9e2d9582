"""torchft in torch-hal: strategy ``torchft``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_torchft.strategy import TorchFTStrategy

__all__ = ["TorchFTStrategy"]

__getattr__, __dir__ = lazy_names(__name__, {"TorchFTStrategy": "torch_hal_torchft.strategy"})
