"""README's Python, on hivemind itself."""

from __future__ import annotations

from pathlib import Path

from readme_blocks import run_readme

README = Path(__file__).parents[2] / "README.md"


def test_readme_runs(tmp_path: Path) -> None:
    """A single peer, with fewer samples a step, trains by README's Python."""
    run_readme(README, tmp_path, {"target_batch_size=4096": "target_batch_size=32", "max_steps=10_000": "max_steps=2"})
