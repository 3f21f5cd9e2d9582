"""The process in which plugins are asked, seen from the one that asks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from core.errors import LaunchError

__all__ = ["START", "Answer", "Job", "WorkerProcess"]

Job = dict[str, Any]
Answer = dict[str, Any]

START = 30.0
"""Seconds that the process may need before it comes to its first job, on a busy machine."""

_SIGNALS = {int(number): number.name for number in signal.Signals}

_BOOT = """\
import json, os, sys
with open(os.path.join(sys.argv[1], "task"), encoding="utf-8") as file:
    task = json.load(file)
sys.path[:] = task["path"]
from core.discovery.worker import main
main(sys.argv[1], task)
"""


class WorkerProcess:
    """Answers jobs with what this process can import; when it is left, whatever it started is ended too.

    Args:
        mode: ``"detect"`` for all jobs at once, ``"probe"`` for one after another.
        jobs: What :mod:`core.discovery.worker` does, each with an ``id``.
        timeout: Seconds.
        environ: Its environment variables; this process's own where none are given.

    Raises:
        LaunchError: It cannot be started.
    """

    def __init__(self, mode: str, jobs: list[Job], timeout: float, environ: Mapping[str, str] | None) -> None:
        self._timeout = timeout
        self._timed_out = False
        self._directory = ""
        task = {"mode": mode, "path": [str(entry) for entry in sys.path], "timeout": timeout, "jobs": jobs}
        try:
            self._directory = tempfile.mkdtemp(prefix="core-probe-")
            self._process = self._start(task, environ)
        except OSError as error:
            self._remove_files()
            raise LaunchError(f"the process that asks plugins cannot be started: {error}") from error

    def _start(self, task: Mapping[str, Any], environ: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
        with open(self._file("task"), "w", encoding="utf-8") as file:
            json.dump(task, file)
        with open(self._file("output"), "wb") as output:
            return subprocess.Popen(
                [sys.executable, "-P", "-u", "-c", _BOOT, self._directory],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=None if environ is None else dict(environ),
                start_new_session=True,
            )

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._kill()
        self._remove_files()

    def finish(self, limit: float) -> dict[int, Answer]:
        """The answers by job, when it has left or was killed after ``limit`` seconds."""
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self._timed_out = True
        self._kill()
        lines = self._read("answers").split("\n")[:-1]  # a line without its end was being written when it died
        answers = [json.loads(line) for line in lines]
        return {answer.pop("job"): answer for answer in answers}

    @property
    def death(self) -> Answer:
        """Why there is no further answer."""
        log, output = self._read("log"), self._read("output")
        code = self._process.returncode
        if self._timed_out or log.startswith("Timeout"):
            error = f"timed out after {self._timeout:g} s"
        elif code < 0:
            error = f"killed by {_SIGNALS.get(-code, f'signal {-code}')}"
        else:
            error = f"ended its process with exit code {code}"
        return {"error": error, "detail": f"{log}{output[-2000:]}"}

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()

    def _remove_files(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _file(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _read(self, name: str) -> str:
        try:
            with open(self._file(name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""
