"""What is asked of every backend of the kind ``accelerator``."""

from __future__ import annotations

from torch_hal_devkit.suites.accelerator import AcceleratorSuite


class TestAccelerator(AcceleratorSuite):
    """The suite as it is."""
