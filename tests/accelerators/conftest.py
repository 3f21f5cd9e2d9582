"""Running Python in a process of its own that has the simulated device within reach."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_SIMULATED = Path(__file__).parents[1] / "simulated"

RunSimulated = Callable[..., str]


@pytest.fixture
def run_simulated(tmp_path: Path) -> RunSimulated:
    """Run ``python *args`` where ``simx`` can be imported; its output, once it and all it started are gone.

    A process of its own, since torch takes a device type from outside for good: no other test may see it.
    """

    def run(*args: str | Path, devices: int = 2, timeout: float = 120) -> str:
        words = ("PYTEST_", "CORE_", "SIMX_", "TORCHELASTIC_")
        exact = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        env = {key: value for key, value in os.environ.items() if not key.startswith(words) and key not in exact}
        path = [str(_SIMULATED), *filter(None, [env.get("PYTHONPATH")])]
        env |= {"PYTHONPATH": os.pathsep.join(path), "SIMX_DEVICES": str(devices), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, *map(str, args)],
            env=env,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout)
        finally:
            left_over = _kill_group(process.pid)
            process.wait()
        assert process.returncode == 0, output
        assert not left_over, f"it left processes behind:\n{output}"
        return output

    return run


def _kill_group(group: int) -> bool:
    """Kill what still runs in a process group; whether anything did."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
