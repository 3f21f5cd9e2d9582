"""Running Python in a separate process that has the simulated device within reach."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from declared import torch_takes_no_backend_in_python
from python_processes import run_python

_SIMULATED = Path(__file__).parents[1] / "simulated"

RunSimulated = Callable[..., str]


@pytest.fixture
def run_simulated(tmp_path: Path) -> RunSimulated:
    """Run ``python *args`` where ``simx`` can be imported; what it prints, once it and all it started are gone.

    A separate process, since torch takes a device type from outside for good: no other test may see it.
    """

    if (reason := torch_takes_no_backend_in_python()) is not None:
        pytest.skip(reason)

    def run(*args: str | Path, devices: int = 2, timeout: float = 120) -> str:
        path = os.pathsep.join([str(_SIMULATED), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {"PYTHONPATH": path, "SIMX_DEVICES": str(devices)}
        ended = run_python(*args, cwd=tmp_path, timeout=timeout, leaves_nothing=True, env=env)
        return ended.stdout

    return run
