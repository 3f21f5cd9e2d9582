"""Running the scripts of this folder in processes of their own, and what they said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
RANKS = ("CORE_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "TORCHELASTIC_")


def run_script(out: Path, script: str, *arguments: object, **variables: str) -> dict[str, Any]:
    """Run a script to its end, which must be a good one; returns what its process 0 wrote to ``said.json``."""
    out.mkdir(exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(RANKS)}
    environ |= {"OUT": str(out), "OMP_NUM_THREADS": "1", **variables}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPTS / script), *map(str, arguments)],
        env=environ,
        cwd=out,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr[-6000:]}"
    said: dict[str, Any] = json.loads((out / "said.json").read_text())
    return said


@pytest.fixture(scope="session")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``loops.py`` says on two processes."""
    return run_script(tmp_path_factory.mktemp("two"), "loops.py", 2)


@pytest.fixture(scope="session")
def on_four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``loops.py`` says on four processes."""
    return run_script(tmp_path_factory.mktemp("four"), "loops.py", 4)
