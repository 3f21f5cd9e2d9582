"""Sends a signal to a process of a fit, its launcher or its group: exit code, seconds until all ended, what is saved.

``benchmarks/failures.py signals`` makes a table of all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from attrs import frozen

from core.checkpoints import is_committed

from .killing import cpu_seconds, processes_with

SCRIPT = Path(__file__).parent / "scripts" / "signalled.py"
LIMIT = 120.0

KINDS = {
    "SIGTERM": [signal.SIGTERM],
    "SIGINT": [signal.SIGINT],
    "SIGUSR1": [signal.SIGUSR1],
    "SIGTERM twice": [signal.SIGTERM, signal.SIGTERM],
}
TARGETS = ("rank 0", "rank 1", "launcher", "group")
MOMENTS = {"start": "before the first step", "step": "in a step", "validation": "in validation", "save": "in a save"}
TWICE_SECONDS = 0.8


@frozen
class Ended:
    """What a signal did."""

    code: int
    """Exit code of the process that was started."""
    seconds: float
    """From the first signal until all processes had ended."""
    are_all_gone: bool
    is_saved: bool
    said: str
    """Standard error."""


def start(out: Path, *arguments: str, within: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start a script in a new process group, with its output in files; ``within`` is a command that runs a command."""
    environ = {**os.environ, "OUT": str(out), "OMP_NUM_THREADS": "1"}
    environ.pop("FORK_SERVERS", None)
    with (out / "output").open("wb") as output, (out / "error").open("wb") as error:
        command = [*within, sys.executable, "-W", "ignore", *arguments]
        return subprocess.Popen(command, stdout=output, stderr=error, env=environ, cwd=out, start_new_session=True)


def wait_until_gone(process: subprocess.Popen[bytes], out: Path, limit: float = LIMIT) -> tuple[int, bool]:
    """The exit code, and whether all ended within the limit in seconds; ends what is left."""
    deadline = time.monotonic() + limit
    while (process.poll() is None or processes_with(out)) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = processes_with(out)
    for each in left:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    return process.wait(), not left


def wait_while_it_works(process: subprocess.Popen[bytes], out: Path) -> None:
    """Wait until it has ended, or its processes have used next to no CPU time for a minute, or for five minutes."""
    last, since = 0.0, time.monotonic()
    deadline = since + 300.0
    while time.monotonic() < min(since + 60.0, deadline):
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
            return
        used = sum(map(cpu_seconds, processes_with(out)))
        if abs(used - last) > 0.5:
            last, since = used, time.monotonic()


def send(kind: str, target: str, moment: str, out: Path) -> Ended:
    """Train, and send signals of a kind to a target when every process has reached the moment.

    Raises:
        AssertionError: The fit did not reach the moment.
    """
    process = start(out, str(SCRIPT), moment)
    deadline = time.monotonic() + LIMIT
    while not all((out / f"pid.{rank}").exists() and (out / f"pid.{rank}").read_text() for rank in (0, 1)):
        if time.monotonic() > deadline or process.poll() is not None:
            wait_until_gone(process, out, 0.0)
            raise AssertionError(f"{kind}, {target}, {moment}: it did not start\n{(out / 'error').read_text()}")
        time.sleep(0.01)
    begin = time.monotonic()
    for place, number in enumerate(KINDS[kind]):
        if place:
            time.sleep(TWICE_SECONDS)
        with suppress(ProcessLookupError):
            if target == "group":
                os.killpg(process.pid, number)
            elif target == "launcher":
                process.send_signal(number)
            else:
                os.kill(int((out / f"pid.{target[-1]}").read_text()), number)
    code, are_all_gone = wait_until_gone(process, out)
    seconds = time.monotonic() - begin
    saved = out / "saved" / "signal.ckpt"
    is_saved = saved.exists() and is_committed(saved)
    return Ended(code, seconds, are_all_gone, is_saved, (out / "error").read_text(errors="replace"))
