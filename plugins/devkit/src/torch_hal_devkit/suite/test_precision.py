"""What is asked of every backend of the kind ``precision``."""

from __future__ import annotations

from torch_hal_devkit.suites.precision import PrecisionSuite


class TestPrecision(PrecisionSuite):
    """The suite as it is."""
