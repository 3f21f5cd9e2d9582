"""hivemind in torch-hal: strategy ``hivemind``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_hivemind.strategy import HivemindStrategy

__all__ = ["HivemindStrategy"]

__getattr__, __dir__ = lazy_names(__name__, {"HivemindStrategy": "torch_hal_hivemind.strategy"})
