"""The memory of a load into a sharded model and Adam that are there, of a state larger than a process may allocate."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import run_script


@pytest.mark.slow
def test_no_process_needs_the_whole_state(tmp_path: Path) -> None:
    """Of a file that one process wrote; and of the shards of two, where a process cannot allocate the whole."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("by declaration: a process's memory and maps cannot be read here")
    env = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # so that the system gets back what is freed
    said = run_script(tmp_path, "memory.py", **env)["processes"]
    assert len(said) == 3
    for each in said:
        assert all(load["is_equal"] and load["maps"] == 0 for load in each.values()), each
        assert each["one file"]["extra"] < 0.8, each  # of the share: Adam's new state, before the old one goes
        assert each["shards"]["extra"] < 1.25, each
        assert each["shards"]["whole"].startswith("CheckpointError"), each
        assert "can't allocate memory" in each["shards"]["whole"], each
