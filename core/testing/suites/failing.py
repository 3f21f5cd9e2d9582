"""T3: however one process of a run fails, all of them end in bounded time, and the exit code says so."""

from __future__ import annotations

import pytest

from core.testing.suites.several import SEVERAL, Runs, RunTests
from core.testing.tiers import skip_by_declaration

__all__ = ["FailureTests"]

ENDS_WITHIN = 60.0
"""Seconds between the failure of one process and the end of all."""


class FailureTests(RunTests):
    """Tests of tier T3."""

    @SEVERAL
    @pytest.mark.parametrize(("how", "victim"), [("kill", 1), ("raise", 0)])
    def test_a_failing_process_ends_all(self, several: Runs, how: str, victim: int) -> None:
        """A killed process, or an exception in one, ends all in bounded time with a failing exit code; none is left."""
        if several.world_size == 1:
            skip_by_declaration("one process drives all devices")
        if "started_here" in several.start:
            skip_by_declaration("launcher is None: it starts no processes")
        outcome = several.run("failing", dict(several.words), how, victim, **several.start)
        failed = outcome.values("failed")[victim]
        assert outcome.code is not None, f"{how} in rank {victim}: {outcome.end}\n{outcome.output[-4000:]}"
        assert outcome.code != 0, f"{how} in rank {victim}: {outcome.end}. Expected: a failing exit code"
        seconds = outcome.ended_at - failed
        assert seconds <= ENDS_WITHIN, (
            f"{how} in rank {victim}: all ended after {seconds:.0f} s. Expected: {ENDS_WITHIN:g} s"
        )
        assert not outcome.left, f"{how} in rank {victim}: still there {outcome.left}. Expected: no process of the run"
        came_through = [rank for rank, found in enumerate(outcome.ranks) if "came through" in found]
        assert not came_through, f"{how} in rank {victim}: ranks {came_through} came through a barrier without it"
        assert how == "kill" or "planted by the conformance kit" in outcome.output, (
            f"raise in rank {victim}: the exception is not shown. What is:\n{outcome.output[-2000:]}"
        )
