"""``if rank == 0: return``: the others never hang for it, and the right process is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import SCRIPTS, processes_with

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("started_not_forked")]

WAITS_SECONDS = 30
"""A process that is done waits so long for others that are still at work."""


def run_early(out: Path, processes: int, then: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """How a run ends in which rank 0 returns early, and the seconds from then on until all processes are gone."""
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / "early.py"), str(processes), then]
    environ = {**os.environ, "OUT": str(out), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environ, cwd=out, capture_output=True, text=True, timeout=200, check=False)
    while processes_with(out):
        time.sleep(0.05)
    return ended, time.monotonic() - max(map(float, re.findall(r"dying at ([\d.]+)", ended.stdout)))


@pytest.mark.parametrize(
    ("processes", "then"),
    [
        (2, "waits in forward"),
        pytest.param(2, "waits in backward", marks=pytest.mark.exhaustive),
        pytest.param(3, "waits in backward", marks=pytest.mark.exhaustive),
    ],
)
def test_others_that_wait_end_soon(processes: int, then: str, tmp_path: Path) -> None:
    """All are gone before the time that is given to processes at work, and each names rank 0 and its own line."""
    ended, seconds = run_early(tmp_path, processes, then)
    assert ended.returncode == 1, ended.stderr
    assert seconds < WAITS_SECONDS
    assert "is through" not in ended.stdout
    blamed = re.findall(r"^rank (\d) of \d ends because rank (\d) has ended its script.*", ended.stderr, re.MULTILINE)
    assert sorted(blamed) == [(str(rank), "0") for rank in range(1, processes)], ended.stderr
    lines = (SCRIPTS / "early.py").read_text().splitlines()
    line = 1 + max(number for number, text in enumerate(lines) if "runtime.backward(" in text)
    assert f"line {line} of {SCRIPTS / 'early.py'}, and waits for rank 0" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_one_that_works_alone_finishes(tmp_path: Path) -> None:
    """A process that needs no other one is waited for, and the run succeeds."""
    ended, _ = run_early(tmp_path, 2, "alone")
    assert ended.returncode == 0, ended.stderr
    assert "rank 1 is through" in ended.stdout
