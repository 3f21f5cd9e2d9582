"""Horovod itself, over gloo on this machine; see environment.py."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch_hal_horovod.library import import_horovod

SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = Path(__file__).parents[2] / "examples"
HOROVODRUN = ("-m", "horovod.runner.launch")
WHY_NOT = None if find_spec("horovod") is not None else "horovod is not installed; see tests/real/environment.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here, and skip it with the reason."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.horovod_real)
            reason = WHY_NOT or (_why_no_mpi() if item.get_closest_marker("horovod_mpi") else None)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@cache
def _why_no_mpi() -> str | None:
    if shutil.which("mpirun") is None:
        return "mpirun, of Open MPI, is not installed"
    if not import_horovod().mpi_built():
        return "horovod is built without MPI; see --mpi of tests/real/environment.py"
    return None


def run(*words: Any, fails: bool = False, seconds: float = 150, **variables: Any) -> str:
    """What a command writes to both streams; none of the processes that it starts outlives it."""
    with subprocess.Popen(
        [*map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "", **variables},
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


def run_python(*words: Any, **more: Any) -> str:
    """What an interpreter writes to both streams."""
    return run(sys.executable, *words, **more)


def horovodrun(script: Path | str, *words: Any, **more: Any) -> str:
    """Run a script in two processes, warnings as errors."""
    path = SCRIPTS / script
    return run_python(*HOROVODRUN, "-np", 2, "--gloo", sys.executable, "-W", "error", path, *words, **more)


def mpirun(processes: int, script: str, *words: Any, word: bool = True, **more: Any) -> str:
    """Run a script in so many processes of Open MPI's, warnings as errors; ``word`` for the one that is Horovod's."""
    options = ("--oversubscribe", "--bind-to", "none", *(("-x", "HOROVOD_CONTROLLER=mpi") if word else ()))
    as_root: dict[str, Any] = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    python = (sys.executable, "-W", "error", SCRIPTS / script)
    return run("mpirun", "-np", processes, *options, *python, *words, **as_root, **more)
