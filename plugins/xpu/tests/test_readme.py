"""README's Python, on simulated GPUs."""

from __future__ import annotations

import os
from pathlib import Path

from readme_blocks import run_readme

from .conftest import needs_simulation

README = Path(__file__).parents[1] / "README.md"


@needs_simulation
def test_readme_runs(tmp_path: Path, machine: Path) -> None:
    """On two GPUs instead of what the page has, README's Python runs."""
    run_readme(
        README, tmp_path, {}, env={"PYTHONPATH": os.pathsep.join([str(machine), os.environ.get("PYTHONPATH", "")])}
    )
