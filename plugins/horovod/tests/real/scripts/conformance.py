"""The conformance kit's suite of strategies on Horovod, whose processes its own launcher starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import pytest
from torch_hal_devkit import BackendUnderTest, StrategySuite


class TestHorovod(StrategySuite):
    """On one process, and on two."""

    @pytest.fixture
    def backend(self) -> BackendUnderTest:
        """The strategy."""
        return BackendUnderTest.find("strategy", "horovod", os.environ)

    @pytest.fixture
    def start_command(self) -> Callable[[int], Sequence[str]]:
        """Over gloo, on this machine."""
        return lambda processes: [sys.executable, "-m", "horovod.runner.launch", "-np", str(processes), "--gloo"]
