"""The real torch_xla, on this machine's CPU; see environment.py."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

RunScript = Callable[..., Any]


def _why_not() -> str | None:
    """Why these tests cannot be run here."""
    try:
        distribution("torch_xla")
    except PackageNotFoundError:
        return "torch_xla is not installed"
    if os.environ.get("PJRT_DEVICE") != "CPU":
        return "PJRT_DEVICE is not CPU"
    return None


WHY_NOT = _why_not()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here, and skip it with the reason."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xla_real)
            if WHY_NOT is not None:
                item.add_marker(pytest.mark.skip(reason=WHY_NOT))


@pytest.fixture(scope="session", autouse=True)
def _runtime() -> None:
    """Start the runtime before any backward pass on the CPU, as torch needs it."""
    if WHY_NOT is None:
        from torch_hal_xla.accelerator import XLAAccelerator

        accelerator = XLAAccelerator()
        accelerator.import_backend()
        accelerator.setup_device(accelerator.get_parallel_devices([0])[0])


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Run a script in a separate process; what it tells in its last line, and all that it wrote to standard error."""

    def run(name: str, *arguments: str, **environ: str | None) -> Any:
        done = run_python(Path(__file__).parent / "scripts" / name, *arguments, cwd=tmp_path, env=environ)
        return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}

    return run
