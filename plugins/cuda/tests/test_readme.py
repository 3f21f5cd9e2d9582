"""README's Python, on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from readme_blocks import run_readme

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.cuda
def test_readme_runs(tmp_path: Path) -> None:
    """On one GPU instead of two, README's Python runs; this process leaves it free."""
    run_readme(README, tmp_path, {"devices=2": "devices=1", "cuda_devices(2)": "cuda_devices(1)"})
