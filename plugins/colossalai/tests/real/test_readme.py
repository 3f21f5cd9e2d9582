"""README's Python, on Colossal-AI itself."""

from __future__ import annotations

from pathlib import Path

from readme_blocks import run_readme

README = Path(__file__).parents[2] / "README.md"


def test_readme_runs(tmp_path: Path) -> None:
    """README's Python trains on two processes."""
    run_readme(README, tmp_path, {"devices=2": "devices=2, max_epochs=1"})
