"""Processes of one data part read the same batches, whatever each one's seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import run_script


@pytest.mark.slow
def test_processes_of_one_part_read_the_same(tmp_path: Path) -> None:
    """Orders and random numbers are process 0's; data that is not the same is an error that says so."""
    said = run_script(tmp_path, "reading.py")
    for name in ("shuffled", "shuffled by workers", "stream", "stream of workers"):
        first, other = said[name]
        assert first == other, name
        assert sorted(item[0] for batch in first for item in batch) == sorted([*range(10)] * 2), name
        assert len({item[1] for batch in first for item in batch}) == 20, name
    for name in ("divided stream", "divided sampler", "shorter data"):
        assert any("the processes of this strategy work on each batch together" in error for error in said[name]), name
