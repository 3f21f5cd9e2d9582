"""Steps that loss scaling skips, and the learning rates of two processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import run_script


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("ddp_sharded", marks=pytest.mark.slow)])
def test_schedulers_of_skipped_steps(strategy: str, tmp_path: Path) -> None:
    """They step as often as their optimizer, or as its calls if each process steps alone; each keeps its loss scale."""
    run_script(tmp_path, "overflowing.py", strategy)
    said = [json.loads((tmp_path / f"said{rank}.json").read_text()) for rank in (0, 1)]
    for one in said:
        assert one["together"]["skipped"] == [False, True, False, True, False]
        assert one["together"]["rates"] == [5e-4, 5e-4, 2.5e-4, 2.5e-4, 1.25e-4]
    if strategy == "ddp":
        assert [one["local"]["skipped"] for one in said] == [[False, True, False, True], [False, True, True, True]]
        assert [one["local"]["rates"] for one in said] == [[5e-4, 2.5e-4, 1.25e-4, 6.25e-5]] * 2
        assert [one["resumed"]["rates"] for one in said] == [[3.125e-5]] * 2
        assert [one["local"]["scale"] for one in said] == [65536 / 4, 65536 / 8]
        assert [one["resumed"]["scale"] for one in said] == [65536 / 4, 65536 / 8]
