"""README's Python, on torchao itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from readme_blocks import run_readme

README = Path(__file__).parents[1] / "README.md"


def test_readme_runs(tmp_path: Path) -> None:
    """README's Python trains and quantizes."""
    pytest.importorskip("torchao", reason="torchao is not installed; run nox -s torchao")
    run_readme(README, tmp_path, {})
