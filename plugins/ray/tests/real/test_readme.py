"""README's Python, on Ray itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from readme_blocks import run_readme

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.timeout(600)
def test_readme_runs(tmp_path: Path) -> None:
    """On one node instead of two, in a cluster that Ray starts, README's Python trains both ways."""
    replaced = {
        "num_nodes=2": "num_nodes=1",
        "devices=4": "devices=2",
        "max_epochs=10": "max_epochs=1",
        'address="auto"': 'address="local"',
        "/shared/": f"{tmp_path}/",
        "scaling_config(8)": "scaling_config(2)",
    }
    run_readme(README, tmp_path, replaced, env={"RAY_TRAIN_V2_ENABLED": "1"})
