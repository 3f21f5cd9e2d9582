"""One process on one XLA device."""

from __future__ import annotations

from torch_hal.strategies import SingleDeviceStrategy
from torch_hal_xla.strategies.steps import MarksSteps

__all__ = ["SingleXLAStrategy"]


class SingleXLAStrategy(MarksSteps, SingleDeviceStrategy):
    """One process on one XLA device; it marks the end of each step."""

    name = "single_xla"
