"""What a failed run prints ends with its cause: which rank, what, where in the user's code, what to do; once."""

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

SCRIPT = SCRIPTS / "causes.py"
LAST, MOST = 15, 60
"""People read so many last lines; all of them are at most so many, without torchrun's own."""

PLANTED = "ValueError: planted"
HOW: dict[str, tuple[str, str, int]] = {
    "forward": (PLANTED, "training_step", 1),
    "collective": (PLANTED, "training_step", 1),
    "hook": (PLANTED, "training_step", 1),
    "backward": (PLANTED, "backward", 1),
    "optimizer": (PLANTED, "step", 1),
    "setup": (PLANTED, "setup", 1),
    "worker": (PLANTED, "__getitem__, in a DataLoader worker process", 1),
    "callback": ("KeyError: 'planted'", "on_train_batch_end", 1),
    "script": ("NameError: planted", "make_batch", 1),
    "shape": ("RuntimeError: mat1 and mat2 shapes cannot be multiplied", "training_step", 1),
    "two errors": ("ValueError: planted in", "training_step", 1),
    "unused": ("RuntimeError: Expected to have finished reduction in the prior iteration", "", 1),
    "devices": ("ConfigurationError: devices and num_nodes ask for", "main", 1),
    "exit": ("sys.exit(3)", "training_step", 3),
    "interrupt": ("KeyboardInterrupt", "training_step", 1),
    "kill": ("was killed by SIGKILL. If you did not do that, the system did", "", 128 + signal.SIGKILL),
    "crash": ("was killed by SIGSEGV. It crashed in C or C++: set PYTHONFAULTHANDLER=1", "", 128 + signal.SIGSEGV),
}
"""What the cause says, the function that it names, if any, and the exit code of the job."""

LAUNCHERS = {
    "ddp": [],
    "ddp_spawn": [],
    "ddp_fork": [],
    "torch-hal run": ["-m", "core.run", "--devices"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
}


def fail(out: Path, launcher: str, processes: int, how: str, ranks: str) -> tuple[int, list[str]]:
    """The exit code, and the lines that the whole launch has printed to standard error."""
    under = LAUNCHERS[launcher]
    strategy = "ddp" if under else launcher
    command = [sys.executable, "-W", "ignore", *under, *([str(processes)] if under else [])]
    command += [str(SCRIPT), strategy, str(processes), how, ranks]
    environ = {**os.environ, "OUT": str(out), "OMP_NUM_THREADS": "1"}
    with (out / "error").open("w") as error:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=error, env=environ, cwd=out)
        try:
            code = process.wait(200)
        finally:
            process.kill()
    while processes_with(out):
        time.sleep(0.05)
    return code, (out / "error").read_text(errors="replace").splitlines()


def place_of(how: str) -> str:
    """Where the error is, as the cause names it."""
    lines = SCRIPT.read_text("utf-8").splitlines()
    comment = re.compile(rf"  # (.*, )?{how}(,|$)")
    return f"{SCRIPT}:{next(n for n, line in enumerate(lines, 1) if comment.search(line))} in {HOW[how][1]}"


QUICK = ("ddp", 2, "forward", "1")
SLOW = [
    ("ddp", 3, "forward", "0,1,2"),
    ("ddp", 2, "unused", "0,1"),
    ("ddp", 2, "devices", "1"),
    ("ddp", 2, "kill", "1"),
    ("ddp_spawn", 2, "forward", "0,1"),
    ("ddp_fork", 3, "shape", "1"),
    ("ddp_fork", 2, "worker", "1"),
    ("ddp", 2, "hook", "1"),
    ("torch-hal run", 3, "callback", "1"),
    ("torchrun", 2, "setup", "1"),
    ("torchrun", 2, "script", "1"),
]
ALL = [
    (launcher, processes, how, ranks)
    for launcher in LAUNCHERS
    for how in HOW
    for processes, ranks in ((2, "1"), (2, "0"), (2, "0,1"), (3, "1"), (3, "0,1,2"))
    if not (how == "unused" and len(ranks) < 2 * processes - 1)
    and not (how == "devices" and (launcher != "ddp" or ranks != "1"))
    and not (how == "script" and (launcher in ("ddp_spawn", "ddp_fork") or (launcher == "ddp" and "0" in ranks)))
    and not (how in ("kill", "crash") and (launcher == "torchrun" or "0" in ranks))
    and not (how == "interrupt" and (launcher != "ddp" or "0" in ranks))
    and not (how == "collective" and ranks == "0,1,2")
]
CASES = [
    *(pytest.param(*case, marks=[] if case == QUICK else pytest.mark.slow) for case in [QUICK, *SLOW]),
    *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in ALL if case not in (QUICK, *SLOW)),
]


@pytest.mark.parametrize(("launcher", "processes", "how", "ranks"), CASES)
def test_the_output_ends_with_the_cause(launcher: str, processes: int, how: str, ranks: str, tmp_path: Path) -> None:
    """The last lines name a rank that failed, the error and its line, and no other rank's error or traceback."""
    says, _, expected = HOW[how]
    if how in ("kill", "crash") and launcher in ("ddp_spawn", "ddp_fork"):
        says = says.replace(". ", " before its function had returned. ", 1)
    code, lines = fail(tmp_path, launcher, processes, how, ranks)
    whole, end = "\n".join(lines), "\n".join(lines[-LAST:])
    assert code == (1 if launcher == "torchrun" else expected), whole
    assert len(lines) <= MOST + (45 if launcher == "torchrun" else 0), whole
    who = rf"^(?:\S+ -m core.run: |  traceback : )?rank [{ranks}] (?:of {processes} )?(?:failed: |\(process \d+\) )"
    cause = re.findall(rf"{who}{re.escape(says)}.*", end, re.M)
    assert cause, whole
    if launcher != "torchrun":
        assert len(cause) == 1, whole
        assert len(lines) - lines.index(cause[0]) <= 5, whole
    if HOW[how][1]:
        assert f"at {place_of(how)}" in end, whole
        assert whole.count("Traceback (most recent call last)") <= (2 if launcher == "torchrun" else 1) + (
            how == "worker"
        )
    assert not re.search("gloo/|Connection (closed|reset)|see what it wrote", whole)
    if how == "unused":
        remedy = "Use them all, or set strategy='ddp_find_unused_parameters_true'"
        assert remedy in end.partition("failed: ")[2], "the cause names it"
        assert f"]: Some parameters took no part in the loss of the step before. {remedy}" in whole, "so does the error"
