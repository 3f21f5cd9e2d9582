"""T3: however one process of a run fails, all of them end in bounded time, and the exit code says so."""

from __future__ import annotations

import pytest

from torch_hal_devkit.marks import skip_by_declaration
from torch_hal_devkit.suites.multi_process import MULTI_DEVICE, MultiProcessTests, Runs, refused

__all__ = ["FailureTests"]

ENDS_WITHIN = 60.0
"""The time limit in seconds from the failure of one process to the end of all."""


class FailureTests(MultiProcessTests):
    """Tests of tier T3."""

    @MULTI_DEVICE
    @pytest.mark.parametrize(("how", "victim"), [("kill", 1), ("raise", 0)])
    def test_a_failing_process_ends_all(self, multi_device: Runs, devices: int | None, how: str, victim: int) -> None:
        """A killed process or an exception in one ends all processes in bounded time, with a failing exit code."""
        if multi_device.world_size == 1:
            skip_by_declaration("one_process_per_node is True: one process drives all devices")
        if "started_here" in multi_device.start:
            skip_by_declaration("launcher is None: it starts no processes")
        outcome = None
        if how == "raise" and "start_command" not in multi_device.start and (devices is None or devices >= 3):
            outcome = multi_device.three_processes
        if outcome is None or refused(outcome):
            outcome = multi_device.run("failing", dict(multi_device.arguments), how, victim, **multi_device.start)
        failed = outcome.value_of(victim, "failed")
        assert outcome.code is not None, f"{how} in rank {victim}: {outcome.end}\n{outcome.output[-4000:]}"
        assert outcome.code != 0, f"{how} in rank {victim}: {outcome.end}. Expected: a failing exit code"
        seconds = outcome.ended_at - failed
        assert seconds <= ENDS_WITHIN, (
            f"{how} in rank {victim}: all ended after {seconds:.0f} s. Expected: at most {ENDS_WITHIN:g} s"
        )
        assert not outcome.left, (
            f"{how} in rank {victim}: still running: {outcome.left}. Expected: no process of the run"
        )
        passed = [rank for rank, found in enumerate(outcome.ranks) if "came through" in found]
        assert not passed, f"{how} in rank {victim}: ranks {passed} passed a barrier without it"
        assert how == "kill" or "planted by the conformance kit" in outcome.output, (
            f"raise in rank {victim}: the exception is not shown. The output is:\n{outcome.output[-2000:]}"
        )
