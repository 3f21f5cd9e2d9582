"""Running Python in a process of its own, and reading what it printed: for every test that starts a script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SETTINGS = (
    *("CORE_", "PYTEST_", "SIMX_", "DS_", "CROSS_", "TORCHELASTIC_"),
    *("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "NODE_RANK", "MASTER_"),
)
"""How the names of variables begin that tell a run what to be: a started process has none of them."""


def run_python(
    *arguments: object,
    cwd: Path,
    warnings: str = "",
    expect: int | None = 0,
    timeout: float = 300,
    leaves_nothing: bool = False,
    env: Mapping[str, str | None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments`` to its end; the test fails unless the exit code is the expected one.

    Args:
        *arguments: A script with its arguments, or ``"-c"`` and code, or ``"-m"`` and a module.
        cwd: The working directory.
        warnings: What becomes of warnings, as after ``python -W``; Python's default if empty.
        expect: The expected exit code; negative for the number of a signal, ``None`` for any.
        timeout: In seconds. After it, the process and all that it started are killed.
        leaves_nothing: Fail if a process that it started is still running.
        env: Environment variables in addition to this process's; ``None`` removes one. ``OMP_NUM_THREADS`` is
            ``"1"`` by default: on small problems more threads only wait for each other.

    Returns:
        Exit code, ``stdout`` and ``stderr``.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    variables = {**kept, "OMP_NUM_THREADS": "1", **(env or {})}
    options = ("-W", warnings) if warnings else ()
    with subprocess.Popen(
        [sys.executable, *options, *map(str, arguments)],
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
            _kill(process.pid)
            raise
    left_over = leaves_nothing and _kill(process.pid)
    output = f"exit code {process.returncode}\n{stdout[-10_000:]}\n{stderr[-10_000:]}"
    assert expect in (None, process.returncode), output
    assert not left_over, f"it left processes behind\n{output}"
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def _kill(group: int) -> bool:
    """Kill what still runs in a process group; whether anything did."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
