"""README's Python, on a simulated Mac."""

from __future__ import annotations

from pathlib import Path

import pytest
from readme_blocks import run_readme

from .conftest import needs_simulation

README = Path(__file__).parents[1] / "README.md"


@needs_simulation
@pytest.mark.usefixtures("mac")
def test_readme_runs(tmp_path: Path) -> None:
    """On one GPU instead of what the page has, README's Python runs."""
    run_readme(README, tmp_path, {})
