"""Where the lazy mode's steps are marked: the exact sequence, in both modes and by both front ends."""

from __future__ import annotations

import pytest

pytest.importorskip("stand_ins", reason="needs the stand-ins for Intel's library")

from .conftest import RunScript, needs_backward, needs_simulation

_BATCH = {"lazy": "forward backward mark_step ", "eager": "forward backward "}
_STEP = {"lazy": "step mark_step ", "eager": "step "}
_VALIDATION = {"lazy": "validation mark_step ", "eager": "validation "}


@needs_backward
@needs_simulation
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("mode", ["lazy", "eager"])
@pytest.mark.parametrize("front_end", ["trainer", "runtime"])
def test_marks(run_script: RunScript, front_end: str, mode: str, accumulate: int) -> None:
    """Lazy: a mark after each backward pass, each optimizer's step and each batch of a validation. Eager: none."""
    seen = run_script("marks.py", front_end, str(accumulate), PT_HPU_LAZY_MODE=str(int(mode == "lazy")))
    expected = (_BATCH[mode] * accumulate + _STEP[mode]) * (4 // accumulate)
    if front_end == "trainer":
        expected += _VALIDATION[mode] * 2
    assert seen.split() == expected.split()
