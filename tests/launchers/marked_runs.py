"""Running scripts for the tests, and seeing what they leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
_MARK = "CORE_TEST_RUN"


class Run:
    """A script that is running, with all the processes that it starts."""

    def __init__(self, *command: str, **environ: str) -> None:
        self._mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environ, _MARK: self._mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=SCRIPTS,
        )
        self.facts: list[dict[str, Any]] = []
        self.error = ""

    def until_ready(self, count: int = 2) -> dict[int, int]:
        """Wait until so many processes have said that they are; their numbers by rank."""
        assert self.process.stdout is not None
        ready: dict[int, int] = {}
        while len(ready) < count:
            line = self.process.stdout.readline()
            assert line, f"ended before all were ready:\n{self.process.communicate()[1]}"
            fact = json.loads(line)
            if fact.get("ready"):
                ready[fact["rank"]] = fact["pid"]
        return ready

    def end(self, seconds: float = 200) -> int:
        """Wait for the end; the exit code."""
        output, self.error = self.process.communicate(timeout=seconds)
        self.facts = [json.loads(line) for line in output.splitlines()]
        return self.process.returncode

    def alive(self) -> list[int]:
        """Every process of the run that is left."""
        return processes_with(f"{_MARK}={self._mark}")

    def gone_within(self, seconds: float) -> bool:
        """Wait for every process of the run to be gone; whether they are."""
        deadline = time.monotonic() + seconds
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


@contextmanager
def running(*command: str, **environ: str) -> Iterator[Run]:
    """Run a script; at the end of the block, kill what is left of it."""
    run = Run(*command, **environ)
    try:
        yield run
    finally:
        for pid in run.alive():
            os.kill(pid, 9)
        run.process.communicate()


def processes_with(variable: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found
