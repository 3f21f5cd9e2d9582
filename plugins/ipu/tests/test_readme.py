"""README's Python, on the stand-in for poptorch."""

from __future__ import annotations

from pathlib import Path

import pytest
from readme_blocks import run_readme

pytest.importorskip("stand_ins", reason="needs the stand-in for poptorch")

README = Path(__file__).parents[1] / "README.md"


def test_readme_runs(tmp_path: Path) -> None:
    """On four IPUs, README's Python trains; batches are larger, so that eight of them have equal parts."""
    sgd = "Model.configure_optimizers = lambda self: torch.optim.AdamW(self.parameters(), lr=0.01)"
    run_readme(README, tmp_path, {"accumulate_grad_batches=8": "accumulate_grad_batches=2, max_epochs=1"}, before=sgd)
