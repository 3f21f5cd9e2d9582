"""Finding committed checkpoints, the last one among them."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
import torch

from core.checkpoints import TorchCheckpointIO, is_committed, latest, locate, read_manifest
from core.errors import CheckpointError

IO = TorchCheckpointIO()


def save(path: Path) -> None:
    IO.save_checkpoint({"x": torch.ones(10)}, path)


def claim_newer_format(path: Path) -> None:
    manifest = path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format_version": 99}))


def test_the_latest_is_the_one_saved_last(tmp_path: Path) -> None:
    """By the time in the manifest: neither names nor the file system's times decide."""
    for name in ("step=9", "step=10", "a"):
        save(tmp_path / name)
    os.utime(tmp_path / "step=9")
    (tmp_path / "step=9" / "manifest.json").touch()
    assert latest(tmp_path) == tmp_path / "a"
    save(tmp_path / "step=10")
    assert latest(str(tmp_path)) == tmp_path / "step=10"


def test_the_latest_among_none() -> None:
    """A directory that is empty, or not there yet, holds no latest."""
    assert latest("/nonexistent/directory") is None


def test_what_is_not_committed_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Foreign files and directories, hidden leftovers and damaged checkpoints; these with a warning."""
    assert latest(tmp_path) is None
    save(tmp_path / "good")
    (tmp_path / "file").touch()
    (tmp_path / "logs").mkdir()
    save(tmp_path / ".core-tmp-host-1")
    save(tmp_path / "damaged")
    os.truncate(tmp_path / "damaged" / "shard-00000.pt", 10)
    with caplog.at_level(logging.WARNING):
        assert latest(tmp_path) == tmp_path / "good"
    assert "damaged" in caplog.text
    assert [is_committed(tmp_path / name) for name in ("good", "file", "logs", "damaged", "none")] == [
        *(True, False, False, False, False)
    ]


def test_a_checkpoint_that_was_set_aside_is_found_under_its_own_name(tmp_path: Path) -> None:
    """After a save that died half-way, the old one still is the latest."""
    save(tmp_path / "c")
    (tmp_path / "c").rename(tmp_path / ".c.core-old")
    assert latest(tmp_path) == tmp_path / "c"
    assert is_committed(tmp_path / "c")
    assert locate(tmp_path / "c") == tmp_path / ".c.core-old"
    assert IO.load_checkpoint(tmp_path / "c")["x"].sum() == 10


def test_a_later_layout_is_not_passed_over(tmp_path: Path) -> None:
    """Going on from an older checkpoint because the last cannot be read is the user's choice, not ours."""
    save(tmp_path / "old")
    save(tmp_path / "new")
    claim_newer_format(tmp_path / "new")
    with pytest.raises(CheckpointError, match="format version 99"):
        latest(tmp_path)
    assert is_committed(tmp_path / "new")


def test_a_later_layout_can_be_replaced_and_removed(tmp_path: Path) -> None:
    """It is a checkpoint all the same."""
    for name in ("replaced", "removed"):
        save(tmp_path / name)
        claim_newer_format(tmp_path / name)
    save(tmp_path / "replaced")
    IO.remove_checkpoint(tmp_path / "removed")
    assert read_manifest(tmp_path / "replaced").checkpoint_io == "torch"
    assert os.listdir(tmp_path) == ["replaced"]


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    """It is named with its cause."""
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=f"{tmp_path}/file.*Not a directory"):
        latest(tmp_path / "file")
