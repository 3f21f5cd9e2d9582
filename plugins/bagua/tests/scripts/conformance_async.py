"""The conformance kit's suite of strategies on ``bagua_async``, of whose runs on several processes no two are alike."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import pytest
from torch_hal_devkit import BackendUnderTest, StrategySuite, skip_by_declaration, tier
from torch_hal_devkit.suites.multi_process import Runs
from torch_hal_devkit.suites.strategy import Declaration

WHY = "processes average when the others are ready, so that runs of several processes differ: see README.md"


class TestAsync(StrategySuite):
    """On one process, and on two."""

    @pytest.fixture
    def backend(self) -> BackendUnderTest:
        """The strategy."""
        return BackendUnderTest.find("strategy", "bagua_async", os.environ)

    def test_a_second_run_in_the_same_processes(self, runs: Runs) -> None:
        """On one process, as in the base class."""
        if runs.world_size > 1:
            skip_by_declaration(WHY)
        super().test_a_second_run_in_the_same_processes(runs)

    def test_resuming_is_exact(self, runs: Runs) -> None:
        """On one process, as in the base class."""
        if runs.world_size > 1:
            skip_by_declaration(WHY)
        super().test_resuming_is_exact(runs)

    @tier("T3", needs=("collectives",), tried=False)
    def test_processes_that_were_started_already(
        self, multi_device: Runs, declared: Declaration, tolerances: Mapping[str, float]
    ) -> None:
        """As in the base class, whatever the losses."""
        super().test_processes_that_were_started_already(multi_device, declared, {**tolerances, "32-true": math.inf})
