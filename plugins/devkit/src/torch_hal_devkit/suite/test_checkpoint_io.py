"""What is asked of every backend of the kind ``checkpoint_io``."""

from __future__ import annotations

from torch_hal_devkit.suites.checkpoint_io import CheckpointIOSuite


class TestCheckpointIO(CheckpointIOSuite):
    """The suite as it is."""
