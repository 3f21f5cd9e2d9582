"""What is asked of every backend of the kind ``precision``."""

from __future__ import annotations

from core.testing.suites.precision import PrecisionSuite


class TestPrecision(PrecisionSuite):
    """The suite as it is."""
