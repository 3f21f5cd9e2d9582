"""README's Python, on simulated cards."""

from __future__ import annotations

from pathlib import Path

import pytest
from readme_blocks import run_readme

from .conftest import needs_simulation

README = Path(__file__).parents[1] / "README.md"


@needs_simulation
@pytest.mark.usefixtures("cards")
def test_readme_runs(tmp_path: Path) -> None:
    """On two cards instead of what the page has, README's Python runs."""
    run_readme(README, tmp_path, {"devices=8": "devices=2"})
