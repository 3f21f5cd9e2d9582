"""README's Python, on the CPU."""

from __future__ import annotations

from pathlib import Path

from readme_blocks import run_readme

README = Path(__file__).parents[1] / "README.md"


def test_readme_runs(tmp_path: Path) -> None:
    """README's Python runs; it starts nothing."""
    run_readme(README, tmp_path, {})
