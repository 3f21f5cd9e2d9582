"""README's Python, on the stand-in for torch_xla."""

from __future__ import annotations

from pathlib import Path

from readme_blocks import run_readme

from .conftest import VARIABLES

README = Path(__file__).parents[2] / "README.md"


def test_readme_runs(tmp_path: Path) -> None:
    """README's Python trains on one of two simulated TPUs."""
    run_readme(README, tmp_path, {'devices="auto"': "devices=1, max_epochs=1"}, env=VARIABLES)
