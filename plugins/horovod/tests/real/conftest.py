"""Horovod itself, over gloo on this machine; see environment.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = Path(__file__).parents[2] / "examples"
HOROVODRUN = ("-m", "horovod.runner.launch")
WHY_NOT = None if find_spec("horovod") is not None else "horovod is not installed; see tests/real/environment.py"

Run = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here, and skip it with the reason."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.horovod_real)
            if WHY_NOT is not None:
                item.add_marker(pytest.mark.skip(reason=WHY_NOT))


def run_python(*words: Any, fails: bool = False, seconds: float = 150) -> str:
    """What an interpreter writes to both streams; none of the processes that it starts outlives it."""
    with subprocess.Popen(
        [sys.executable, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # the launcher ends its workers
            raise
    assert (process.returncode != 0) == fails, said
    return said


def horovodrun(script: Path | str, *words: Any, **more: Any) -> str:
    """Run a script in two processes, warnings as errors."""
    path = SCRIPTS / script
    return run_python(*HOROVODRUN, "-np", 2, "--gloo", sys.executable, "-W", "error", path, *words, **more)
