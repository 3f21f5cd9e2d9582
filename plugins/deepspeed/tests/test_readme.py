"""README's Python, on DeepSpeed itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from readme_blocks import run_readme

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.deepspeed
def test_readme_runs(tmp_path: Path) -> None:
    """On two processes instead of eight, README's Python runs."""
    here = {"devices=8": "devices=2", "gradient_clip_val=1.0": "gradient_clip_val=1.0, max_epochs=1"}
    run_readme(README, tmp_path, here, before="Large = Model")
