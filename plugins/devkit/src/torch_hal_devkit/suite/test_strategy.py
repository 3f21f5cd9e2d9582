"""What is asked of every backend of the kind ``strategy``."""

from __future__ import annotations

from torch_hal_devkit.suites.strategy import StrategySuite


class TestStrategy(StrategySuite):
    """The suite as it is."""
