"""Learning rate and batch size, searched by several processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import run_script


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "trained"), [(["ddp", "size", "rate"], [6, 8]), (["ddp_spawn", "rate"], [4, 11])], ids=str
)
def test_three_processes_agree(arguments: list[str], trained: list[int], tmp_path: Path) -> None:
    """On the learning rate, on what fits into the memory of each, and then they train with both."""
    run_script(tmp_path, "tuning.py", *arguments)
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("found*.json"))]
    assert len(found) == 3
    assert found[1:] == found[:-1]
    assert found[0][1:3] == trained  # 130 rows over 3 processes
