"""Saves in the background while three processes train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from core.checkpoints import ShardedCheckpointIO, is_committed

from .conftest import assert_same, run_script, states


def flat(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items() if key != "core"}
    return [flat(item) for item in value] if isinstance(value, list) else value


def content(path: Path) -> Any:
    return flat(ShardedCheckpointIO().load_checkpoint(path))


@pytest.mark.slow
@pytest.mark.parametrize("io", ["torch", "sharded"])
def test_training_and_checkpoints_are_the_same(tmp_path: Path, io: str) -> None:
    """While the background writes, and with ``sharded`` communicates, training has the same bits; so has the result."""
    for way in ("sync", "async"):
        (tmp_path / way).mkdir()
        run_script(tmp_path / way, "async_saving.py", "train", io, way, torchrun=3)
    sync, background = states(tmp_path / "sync"), states(tmp_path / "async")
    assert len(sync) == len(background) == 3
    for rank in sync:
        assert_same(sync[rank], background[rank])
    for name in ("first", "second"):
        assert content(tmp_path / "async" / name) == content(tmp_path / "sync" / name)
    if io == "sharded":
        rows = content(tmp_path / "async" / "second")["rows"]
        assert rows == (torch.arange(70.0).reshape(7, 10) + 11).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("io", ["torch", "sharded"])
def test_a_failure_ends_the_run(tmp_path: Path, io: str) -> None:
    """A write that fails in rank 0 ends all processes with its error; the checkpoint before it is whole."""
    done = run_script(tmp_path, "async_saving.py", "fail", io, "async", torchrun=3, expect=1)
    assert "No space left on device" in done.stderr
    assert "CheckpointError" in done.stderr
    assert not list(tmp_path.glob("rank*.pt"))
    assert content(tmp_path / "first")["step"] == 2
    assert not (tmp_path / "second").exists()


@pytest.mark.slow
@pytest.mark.parametrize("io", ["torch", "sharded"])
def test_a_kill_during_the_write_leaves_the_previous_one(tmp_path: Path, io: str) -> None:
    """All processes are killed while the second checkpoint is half written: the first is whole, the second absent."""
    run_script(tmp_path, "async_saving.py", "kill", io, "async", torchrun=3, expect=1)
    assert content(tmp_path / "first")["step"] == 2
    assert not is_committed(tmp_path / "second")
    run_script(tmp_path, "async_saving.py", "train", io, "async", torchrun=3)
    assert content(tmp_path / "second")["step"] == 11
    assert not list(tmp_path.glob(".core-*"))
