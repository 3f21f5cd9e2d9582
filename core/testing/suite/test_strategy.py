"""What is asked of every backend of the kind ``strategy``."""

from __future__ import annotations

from core.testing.suites.strategy import StrategySuite


class TestStrategy(StrategySuite):
    """The suite as it is."""
