"""However one of three processes fails, it comes first in what is printed, and its exit code is the job's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import SCRIPTS, processes_with

pytestmark = pytest.mark.usefixtures("started_not_forked")

WAYS: dict[str, tuple[str, int]] = {
    "exception": (r"failed: ValueError: planted", 1),
    "memory": (r"failed: MemoryError: planted: no memory left", 1),
    "exit": (r"failed: sys\.exit\(3\)", 3),
    "kill": (r"\(process \d+\) was killed by SIGKILL", 128 + signal.SIGKILL),
    "abort": (r"\(process \d+\) was killed by SIGABRT", 128 + signal.SIGABRT),
}
"""How a process fails: what the first line says of it, and the exit code of the job."""

NOISE = re.compile(
    r"processes share|waits to join|waits for rank 0|Gloo\] Rank|socket\.cpp|Warning|warn"
    r"|TCPStore\.cpp|^Exception raised from |^frame #\d+: |^<omitting python frames>"
)
"""Lines of torch's start, of its lost store when rank 0 dies, and of a slow or small machine."""

SECONDS = 40
"""Allowed until all are gone, on a machine that does other things too."""


def run_dying(out: Path, launcher: str, how: str, victim: int) -> tuple[int, list[str], float]:
    """The exit code, the lines of standard error, and the seconds from the failure until all processes are gone."""
    command = [sys.executable, "-W", "ignore"]
    if launcher == "torchrun":
        command += ["-m", "torch.distributed.run", "--nproc_per_node", "3", "--standalone"]
    command += [str(SCRIPTS / "dying.py"), launcher, how, str(victim)]
    environ = {**os.environ, "OUT": str(out), "OMP_NUM_THREADS": "1"}
    with (out / "error").open("w") as error, (out / "output").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=error, env=environ, cwd=out)
        try:
            code = process.wait(200)
        finally:
            process.kill()
    while processes_with(out):
        time.sleep(0.05)
    died = re.findall(r"dying at ([\d.]+)", (out / "output").read_text())
    lines = [line for line in (out / "error").read_text().splitlines() if line and not NOISE.search(line)]
    return code, lines, time.monotonic() - float(died[0])


LAUNCHERS = ("script", "fork", "spawn")
ALL = [(launcher, how, victim) for launcher in LAUNCHERS for how in WAYS for victim in (1, 0)]
QUICK, SLOW = ("script", "exit", 1), (("fork", "exception", 0), ("spawn", "kill", 1), ("script", "memory", 0))
CASES = [
    pytest.param(*case, marks=() if case == QUICK else pytest.mark.slow if case in SLOW else pytest.mark.exhaustive)
    for case in ALL
]


@pytest.mark.parametrize(("launcher", "how", "victim"), CASES)
def test_the_process_that_failed_comes_first(launcher: str, how: str, victim: int, tmp_path: Path) -> None:
    """First line: which rank, and how; all processes are gone soon, and the exit code is that process's."""
    says, expected = WAYS[how]
    code, lines, seconds = run_dying(tmp_path, launcher, how, victim)
    killed_itself = launcher == "script" and victim == 0 and expected > 128
    if killed_itself:  # the process that the user started: the others tell of it
        assert code == 128 - expected
        assert re.search(r"rank [12] .*ends.* rank 0 ", lines[0]), lines
    else:
        assert code == expected, lines
        assert re.search(rf"^rank {victim} .*{says}", lines[0]), lines
    assert seconds < SECONDS
    survivors = [line for line in lines if "gloo/" in line]
    assert len(survivors) <= 2, lines
    if how == "exception" and not killed_itself:
        assert any("in die" in line for line in lines)


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=pytest.mark.slow if how == "exit" else pytest.mark.exhaustive) for how in WAYS]
)
def test_under_torchrun(how: str, tmp_path: Path) -> None:
    """Torchrun's own table follows; no survivor writes a traceback of a lost connection."""
    says, _ = WAYS[how]
    code, lines, seconds = run_dying(tmp_path, "torchrun", how, 1)
    assert code != 0
    assert seconds < SECONDS
    assert sum("gloo/" in line for line in lines) <= 2, lines
    if how in ("exception", "memory", "exit"):
        assert re.search(rf"^rank 1 of 3 {says}", lines[0]), lines
