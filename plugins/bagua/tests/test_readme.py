"""README's Python, on the CPU."""

from __future__ import annotations

from pathlib import Path

from readme_blocks import run_readme

README = Path(__file__).parents[1] / "README.md"


def test_readme_runs(tmp_path: Path) -> None:
    """On two processes instead of eight GPUs, README's Python runs."""
    run_readme(README, tmp_path, {'accelerator="gpu"': 'accelerator="cpu"', "devices=8": "devices=2"})
