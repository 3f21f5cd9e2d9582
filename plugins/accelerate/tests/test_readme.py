"""README's Python, on Accelerate itself and simulated cards."""

from __future__ import annotations

from pathlib import Path

from readme_blocks import run_readme

README = Path(__file__).parents[1] / "README.md"


def test_readme_runs(tmp_path: Path) -> None:
    """README's Python prepares on two cards; the second way, which comes first in a script, on one."""
    second = 'torch_hal_accelerate.activate(accelerator="acme", devices=2)'
    run_readme(README, tmp_path, {second: "torch_hal_accelerate.deactivate()"}, env={"ACME_DEVICES": "2"})
