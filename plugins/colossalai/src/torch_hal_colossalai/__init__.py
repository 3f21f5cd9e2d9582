"""Colossal-AI in torch-hal: strategy ``colossalai``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_colossalai.strategy import ColossalAIStrategy

__all__ = ["ColossalAIStrategy"]

__getattr__, __dir__ = lazy_names(__name__, {"ColossalAIStrategy": "torch_hal_colossalai.strategy"})
