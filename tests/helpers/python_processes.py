"""Running a script or another command in a separate process: for every test that starts one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

SETTINGS = (
    *("CORE_", "PYTEST_", "SIMX_", "DS_", "CROSS_", "TORCHELASTIC_"),
    *("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "NODE_RANK", "MASTER_"),
)
"""Prefixes of environment variables that configure a run. A started process gets none of them."""


def run_python(*arguments: object, warnings: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments`` to its end.

    Args:
        *arguments: A script with its arguments, or ``"-c"`` and code, or ``"-m"`` and a module.
        warnings: What becomes of warnings, as after ``python -W``; Python's default if empty.
        **options: As for :func:`run_program`.
    """
    return run_program(sys.executable, *(("-W", warnings) if warnings else ()), *arguments, **options)


def run_script(
    script: Path, out: Path, *arguments: object, timeout: float = 300, env: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """Run a script that writes what it saw to ``said.json`` in the folder ``$OUT``; returns that.

    Args:
        script: The script, which must end with exit code 0.
        out: The folder, which is created, and is the working directory.
        *arguments: Those of the script.
        timeout: In seconds.
        env: As for :func:`run_program`.
    """
    out.mkdir(exist_ok=True)
    run_python(script, *arguments, cwd=out, timeout=timeout, warnings="ignore", env={"OUT": str(out), **(env or {})})
    said: dict[str, Any] = json.loads((out / "said.json").read_text())
    return said


def run_program(
    *command: object,
    cwd: Path,
    expect: int | None = 0,
    timeout: float = 300,
    leaves_nothing: bool = False,
    env: Mapping[str, str | None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; the test fails unless the exit code is the expected one.

    Args:
        *command: A program and its arguments.
        cwd: The working directory.
        expect: The expected exit code; negative for the number of a signal, ``None`` for any.
        timeout: In seconds. After it, the process and all that it started are ended.
        leaves_nothing: Fail if a process that it started is still running.
        env: Environment variables in addition to this process's; ``None`` removes one. ``OMP_NUM_THREADS`` is
            ``"1"`` by default: on small problems more threads only wait for each other.

    Returns:
        Exit code, ``stdout`` and ``stderr``.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    variables = {**kept, "OMP_NUM_THREADS": "1", **(env or {})}
    with subprocess.Popen(
        list(map(str, command)),
        cwd=cwd,
        env={name: value for name, value in variables.items() if value is not None},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            _end(process)
            raise
    left_over = leaves_nothing and _kill(process.pid)
    output = f"exit code {process.returncode}\n{stdout[-10_000:]}\n{stderr[-10_000:]}"
    assert expect in (None, process.returncode), output
    assert not left_over, f"it left processes behind\n{output}"
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started; launchers end workers in other process groups when they get SIGTERM."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)
    _kill(process.pid)


def _kill(group: int) -> bool:
    """Kill what still runs in a process group; whether anything did."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
