"""However one of three processes fails, what is printed ends with it, and its exit code is the job's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults.dying import cause_in

from .conftest import SCRIPTS, processes_with

pytestmark = pytest.mark.usefixtures("started_not_forked")

WAYS: dict[str, tuple[str, int]] = {
    "exception": (r"failed: ValueError: planted", 1),
    "memory": (r"failed: MemoryError: planted: no memory left", 1),
    "exit": (r"failed: sys\.exit\(3\)", 3),
    "kill": (r"\(process \d+\) was killed by SIGKILL", 128 + signal.SIGKILL),
    "abort": (r"\(process \d+\) was killed by SIGABRT", 128 + signal.SIGABRT),
}
"""How a process fails: what the cause says of it, and the exit code of the job."""

SECONDS = 40
"""Allowed until all are gone, on a machine that does other things too."""


def run_dying(out: Path, launcher: str, how: str, victim: int) -> tuple[int, str, float]:
    """The exit code, standard error, and the seconds from the failure until all processes are gone."""
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
    return code, (out / "error").read_text(), time.monotonic() - float(died[0])


LAUNCHERS = ("script", "fork", "spawn")
ALL = [(launcher, how, victim) for launcher in LAUNCHERS for how in WAYS for victim in (1, 0)]
QUICK, SLOW = ("script", "exit", 1), (("fork", "exception", 0), ("spawn", "kill", 1), ("script", "memory", 0))
CASES = [
    pytest.param(*case, marks=() if case == QUICK else pytest.mark.slow if case in SLOW else pytest.mark.exhaustive)
    for case in ALL
]


@pytest.mark.parametrize(("launcher", "how", "victim"), CASES)
def test_the_process_that_failed_comes_last(launcher: str, how: str, victim: int, tmp_path: Path) -> None:
    """At the end: which rank, and how; all processes are gone soon, and the exit code is that process's."""
    says, expected = WAYS[how]
    code, said, seconds = run_dying(tmp_path, launcher, how, victim)
    killed_itself = launcher == "script" and victim == 0 and expected > 128
    if killed_itself:  # the process that the user started: the others tell of it
        assert code == 128 - expected
        assert re.search(r"rank [12] .*ends.* rank 0 ", said), said
    else:
        assert code == expected, said
        assert re.search(rf"rank {victim} .*{says}", cause_in(said)), said
    assert seconds < SECONDS
    assert "gloo/" not in said or killed_itself, said
    if how == "exception" and not killed_itself:
        assert "in die" in said


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=pytest.mark.slow if how == "exit" else pytest.mark.exhaustive) for how in WAYS]
)
def test_under_torchrun(how: str, tmp_path: Path) -> None:
    """Torchrun's own table ends with the cause; no survivor writes a traceback of a lost connection."""
    says, _ = WAYS[how]
    code, said, seconds = run_dying(tmp_path, "torchrun", how, 1)
    assert code != 0
    assert seconds < SECONDS
    assert said.count("gloo/") <= 2, said
    if how in ("exception", "memory", "exit"):
        assert re.search(rf"rank 1 of 3 {says}", cause_in(said)), said


ENDING = """
import sys, threading, time
from core.strategies.first_failure import Failures
from core.strategies.store.tcp_store import host_store

failures = Failures(host_store("127.0.0.1"), 0, 2, None)
failures.install()
threading.Thread(target=failures.end_hung, args=("no batch within 5 s",), daemon=True).start()
time.sleep(0.5)
sys.exit(3)
"""


def test_a_thread_that_ends_the_process_does_so_before_the_interpreter(tmp_path: Path) -> None:
    """A Watchdog asks the others when the main thread ends: its cause is written, and its exit code counts."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rank 0 of 2 failed: no batch within 5 s; ")
    assert "rank(s) 1 did not answer" in last
