"""Saves in the background under FSDP: on three processes, whose shards of a tensor differ in size."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import run_script


@pytest.mark.slow
def test_async_saves_what_sharded_saves(tmp_path: Path) -> None:
    """``checkpoint_io="async"`` writes the same checkpoints in the same format, and training has the same bits."""
    said = run_script(tmp_path, "async_saving.py", 3)
    assert said["async"] == said["sharded"]
    assert said["async"]["kind"] == "ShardedCheckpointIO"
    assert said["async"]["saved"]
    assert said["resumed"] == {"losses": said["sharded"]["losses"][4:], "rest": {"turn": 1}}
