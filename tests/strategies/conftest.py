"""Running the scripts of this folder in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_SCRIPTS = Path(__file__).parent / "scripts"
_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK")

RunScript = Callable[..., str]


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Run a script of this folder to its end, with ``tmp_path`` as its working directory; its output."""

    def run(script: str, *arguments: str) -> str:
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("CORE_") and name not in _LAUNCHERS
        }
        result = subprocess.run(
            [sys.executable, "-W", "error", str(_SCRIPTS / script), *arguments],
            env={**environ, "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == 0, result.stdout
        return result.stdout

    return run
