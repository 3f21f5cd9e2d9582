"""Three processes of which one dies, does not come or is stopped: exit code, seconds, what is printed, what is left.

``benchmarks/failures.py ways`` makes a table of all.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from .killing import processes_with
from .signalling import wait_until_gone

SCRIPT = Path(__file__).parent / "scripts" / "dies_at.py"
START_SECONDS = 120.0

LAUNCHERS = {
    "ddp": [],
    "torch-hal run": ["-m", "core.run", "--devices", "3"],
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node=3", "--standalone"],
}


@frozen
class Way:
    """How rank 1 fails."""

    shown: str
    """In the table."""
    code: int
    """The exit code of the job."""
    says: str
    """A pattern: how the cause begins, with which the output ends."""
    limit: int = 120
    """The time limit of joining and of collectives, in seconds."""
    reads: bool = False
    """Whether standard input is open, and nothing comes."""


TIMED_OUT = r"rank [02] of 3 .*timed out in \w+; rank 1 did not come: it is at dies_at\.py:\d+ in training_step"
SILENT = r"rank [02] of 3 .*timed out in \w+; rank\(s\) 1 did not answer: stopped"
WAYS = {
    "import": Way("an exception while it imports", 1, r"rank 1 \(process \d+\) exited with code 1"),
    "import exit": Way("`sys.exit(3)` while it imports", 3, r"rank 1 \(process \d+\) exited with code 3"),
    "import kill": Way("SIGKILL while it imports", 137, r"rank 1 \(process \d+\) was killed by SIGKILL"),
    "barrier": Way("an exception while the others wait in a barrier", 1, r"rank 1 of 3 failed: ValueError: planted"),
    "barrier kill": Way("SIGKILL in a barrier", 137, r"rank 1 \(process \d+\) was killed by SIGKILL"),
    "validation": Way("an exception in validation", 1, r"rank 1 of 3 failed: ValueError: planted"),
    "validation kill": Way("SIGKILL in validation", 137, r"rank 1 \(process \d+\) was killed by SIGKILL"),
    "callback": Way("an exception in its callback", 1, r"rank 1 of 3 failed: KeyError: 'planted'"),
    "callback end": Way("an exception in `on_train_end`", 1, r"rank 1 of 3 failed: KeyError: 'planted'"),
    "input": Way("`input()` without standard input", 1, r"rank 1 of 3 failed: EOFError: EOF when reading a line"),
    "input waits": Way("waits in `input()`, limit 10 s", 1, TIMED_OUT, 10, reads=True),
    "never": Way("does not start, limit 10 s", 1, r"rank [02] of 3 .*rank\(s\) \[1\] of 3 did not join", 10),
    "late": Way("starts 15 s later", 0, "", 60),
    "stop": Way("SIGSTOP, limit 10 s", 1, SILENT, 10),
    "stop and go": Way("SIGSTOP, SIGCONT after 5 s", 0, ""),
    "outside": Way("SIGKILL from outside, as out of memory", 137, r"rank 1 \(process \d+\) was killed by SIGKILL"),
}
"""``ddp`` starts its processes without standard input: one that reads it fails at once, as without any."""


@frozen
class Death:
    """What a death did."""

    code: int
    seconds: float
    """From the moment when the process died, or began to wait, until all processes had ended."""
    are_all_gone: bool
    cause: str
    """The first line of the last that tells of it."""
    said: str
    """Standard error."""
    output: str


def die(launcher: str, way: str, out: Path, limit: int | None = None) -> Death:
    """Start three processes under a launcher, and let rank 1 die in a way; with another time limit than the way's.

    Raises:
        AssertionError: It was not started.
    """
    method = ["script"] if launcher == "ddp" else []
    command = [*LAUNCHERS[launcher], str(SCRIPT), way, str(limit or WAYS[way].limit), *method]
    reading, writing = os.pipe()
    try:
        process = _start(out, command, reading if WAYS[way].reads else subprocess.DEVNULL)
        if way in ("outside", "stop and go"):
            _wait_for_death(process, out)
            (_kill if way == "outside" else _continue)(out)
        code, are_all_gone = wait_until_gone(process, out)
    finally:
        os.close(reading)
        os.close(writing)
    end = time.monotonic()
    output, said = (out / "output").read_text(), (out / "error").read_text(errors="replace")
    died = re.findall(r"dying at ([\d.]+)", output)
    seconds = end - float(died[0]) if died else float("nan")
    return Death(code, seconds, are_all_gone, cause_in(said), said, output)


LAST = 15
"""So many last lines people read."""
_CAUSE = re.compile(
    r"rank (\d( of \d)? failed: |\d \(process \d+\) (was killed|exited)|\d .* because rank \d has).*"
    r"|Signal \d+ .* received"
)


def cause_in(said: str) -> str:
    """The line at the end of what was printed that tells of the cause; empty if none does."""
    found = [match[0] for line in said.splitlines()[-LAST:] if (match := _CAUSE.search(line))]
    return found[-1] if found else ""


def _start(out: Path, command: list[str], reading: int) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "OUT": str(out), "OMP_NUM_THREADS": "1"}
    environ.pop("FORK_SERVERS", None)
    with (out / "output").open("wb") as output, (out / "error").open("wb") as error:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", *command],
            stdin=reading,
            stdout=output,
            stderr=error,
            env=environ,
            cwd=out,
            start_new_session=True,
        )


def _wait_for_death(process: subprocess.Popen[bytes], out: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while "dying at" not in (out / "output").read_text():
        if time.monotonic() > deadline or process.poll() is not None:
            wait_until_gone(process, out, 0.0)
            raise AssertionError(f"it did not start\n{(out / 'error').read_text()}")
        time.sleep(0.05)


def _kill(out: Path) -> None:
    for process in _found(out, lambda folder: b"\0RANK=1\0" in b"\0" + (folder / "environ").read_bytes()):
        os.kill(process, signal.SIGKILL)


def _continue(out: Path) -> None:
    def is_stopped(folder: Path) -> bool:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0] == "T"

    while not (stopped := _found(out, is_stopped)):
        time.sleep(0.05)
    time.sleep(5)
    for process in stopped:
        os.kill(process, signal.SIGCONT)


def _found(out: Path, which: Callable[[Path], bool]) -> list[int]:
    found = []
    for process in processes_with(out):
        with suppress(OSError):
            if which(Path("/proc", str(process))):
                found.append(process)
    return found
