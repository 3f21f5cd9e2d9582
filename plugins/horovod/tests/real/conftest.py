"""Horovod itself, over gloo on this machine; see environment.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_program, run_python
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


_ENVIRONMENT = {"PYTHONWARNINGS": None}
"""The scripts' interpreters get ``-W error``; the launchers warn, and must not fail then."""


def run_alone(*arguments: object, **options: Any) -> str:
    """Run an interpreter; returns both of its streams."""
    return _streams(run_python(*arguments, cwd=SCRIPTS, env=_ENVIRONMENT, **{"timeout": 150, **options}))


def horovodrun(script: str, *arguments: object, **options: Any) -> str:
    """Run a script in two processes, warnings as errors; returns both streams."""
    python = (sys.executable, "-W", "error", SCRIPTS / script)
    return run_alone(*HOROVODRUN, "-np", 2, "--gloo", *python, *arguments, **options)


def mpirun(processes: int, script: str, *arguments: object, sets_controller: bool = True, **options: Any) -> str:
    """Run a script in several processes of Open MPI, warnings as errors; returns both streams."""
    controller = ("-x", "HOROVOD_CONTROLLER=mpi") if sets_controller else ()
    launcher = ("mpirun", "-np", processes, "--oversubscribe", "--bind-to", "none", *controller)
    python = (sys.executable, "-W", "error", SCRIPTS / script)
    env = {**_ENVIRONMENT, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return _streams(run_program(*launcher, *python, *arguments, cwd=SCRIPTS, env=env, timeout=150, **options))


def _streams(done: subprocess.CompletedProcess[str]) -> str:
    return f"{done.stdout}\n{done.stderr}"
