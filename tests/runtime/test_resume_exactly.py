"""A run that is saved after any step and continued in new processes ends bit for bit as the uninterrupted one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from python_processes import run_python

SCRIPT = Path(__file__).parent / "scripts" / "resuming.py"
CASES = int(os.environ.get("RESUME_CASES", "16"))
"""How many cases are drawn for one process; half as many for two."""


@pytest.mark.parametrize(
    ("world", "cases"), [(1, CASES), (2, CASES // 2), pytest.param(3, CASES // 4, marks=pytest.mark.slow)]
)
def test_random_cases(world: int, cases: int, tmp_path: Path) -> None:
    """Loader, workers, accumulation, optimizers, precision and the step at which it stops are drawn at random.

    Parameters, learning rates, losses, the items in their order, the numbers drawn for them, and the generators are
    compared by the script, in a process that knows only the checkpoint.
    """
    for phase in ("save", "resume"):
        ended = run_python(SCRIPT, phase, 0, cases, world, cwd=tmp_path, warnings="ignore", env={"OUT": str(tmp_path)})
        # Processes may write a line each before either ends its own.
        assert ended.stdout.replace("\n", "") == f"{phase}: {cases} cases" * world, ended.stdout
