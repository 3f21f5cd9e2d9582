"""Two XLA devices, simulated; torch_xla is a stand-in that records what it is asked."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

RunScript = Callable[..., Any]

VARIABLES = {
    "ACME_DEVICES": "0",
    "XLA_DEVICES": "2",
    "PJRT_DEVICE": "TPU",
    "TPU_CHIPS_PER_HOST_BOUNDS": "1,2,1",
}


def _why_not() -> str | None:
    """Why these tests cannot be run here."""
    if importlib.util.find_spec("stand_ins") is None:
        return "the stand-in for torch_xla is not installed"
    if not any(map(shutil.which, ("c++", "g++"))):
        return "the simulation is compiled by a C++ compiler"
    try:
        distribution("torch_xla")
    except PackageNotFoundError:
        return None
    return "this is the real torch_xla"


WHY_NOT = _why_not()
if WHY_NOT is None:
    os.environ.update(VARIABLES)
    from torch_hal_xla.accelerator import XLAAccelerator

    (_device, _) = XLAAccelerator().get_parallel_devices([0, 1])
    XLAAccelerator().import_backend()
    XLAAccelerator().setup_device(_device)  # before a backward pass on the CPU, as in any process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what lies here, with the reason."""
    if WHY_NOT is not None:
        for item in items:
            if "standin" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason=WHY_NOT))


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """What the stand-in is asked during the test, in order."""
    import stand_ins

    stand_ins.calls.clear()
    yield stand_ins.calls
    stand_ins.calls.clear()


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Run a script in a separate process; what it tells in its last line."""

    def run(name: str, *arguments: str, **environ: str) -> Any:
        script = Path(__file__).parent / "scripts" / name
        return json.loads(run_python(script, *arguments, cwd=tmp_path, env=environ).stdout.splitlines()[-1])

    return run
