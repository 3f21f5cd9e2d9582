"""What a save and a removal leave alone: files and links of others, checkpoints of other names."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from steps_of_saves import NEW, OLD, dying, found, number_of_steps

from core.checkpoints import CheckpointIO, ShardedCheckpointIO, TorchCheckpointIO, remove_committed
from core.errors import CheckpointError

IO = TorchCheckpointIO()
DIRECTORIES = ShardedCheckpointIO()


def test_rests_of_other_hosts_are_left_to_them(tmp_path: Path) -> None:
    """On a shared file system, a lock of another host may not be seen here."""
    others = sorted([".core-tmp-elsewhere+x1", f".core-tmp-{platform.node()}-2+x1"])
    for name in (*others, f".core-tmp-{platform.node()}+x1"):
        (tmp_path / name).mkdir()
    IO.save_checkpoint(NEW, tmp_path / "c")
    assert sorted(os.listdir(tmp_path)) == [*others, "c"]


@pytest.mark.parametrize("action", [lambda path: IO.save_checkpoint(NEW, path), IO.remove_checkpoint, remove_committed])
@pytest.mark.parametrize("manifest", [None, "{}", '{"manifest_version": 3}'])
def test_a_directory_that_is_no_checkpoint_is_never_touched(
    manifest: str | None, action: Callable[[Path], None], tmp_path: Path
) -> None:
    """Neither replaced nor removed, also where it holds some other program's manifest.json."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("mine")
    if manifest is not None:
        (home / "manifest.json").write_text(manifest)
    with pytest.raises(CheckpointError, match=f"{home} is a directory, but not a checkpoint"):
        action(home)
    assert (home / "thesis.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["home"]


def test_links_are_replaced_and_removed_not_followed(tmp_path: Path) -> None:
    """A link to a checkpoint is loaded through; saving or removing there leaves its target alone."""
    for name in ("saved", "removed"):
        IO.save_checkpoint(OLD, tmp_path / "real")
        (tmp_path / name).symlink_to("real")
        assert found(tmp_path / name, IO) == "old"
    IO.save_checkpoint(NEW, tmp_path / "saved")
    IO.remove_checkpoint(tmp_path / "removed")
    assert found(tmp_path / "saved", IO) == "new"
    assert not (tmp_path / "saved").is_symlink()
    assert found(tmp_path / "real", IO) == "old"
    assert sorted(os.listdir(tmp_path)) == ["real", "saved"]


def test_a_link_inside_a_checkpoint_is_not_followed_by_its_removal(tmp_path: Path) -> None:
    """What someone linked into a checkpoint's directory stays where it is."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("mine")
    DIRECTORIES.save_checkpoint(OLD, tmp_path / "c")
    (tmp_path / "c" / "link").symlink_to(tmp_path / "outside")
    DIRECTORIES.remove_checkpoint(tmp_path / "c")
    assert (tmp_path / "outside" / "file").read_text() == "mine"


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    """Neither in an empty directory nor in one that does not exist, nor when it is an empty directory itself."""
    (tmp_path / "empty").mkdir()
    IO.remove_checkpoint(tmp_path / "empty")
    IO.remove_checkpoint(tmp_path / "c")
    IO.remove_checkpoint(tmp_path / "none" / "c")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("io", [IO, DIRECTORIES])
@pytest.mark.parametrize("name", ["x" * 255, "ä" * 127, "." + "y" * 250, "old", "stale", "rest"])
def test_any_name_that_a_file_can_have_is_saved_again(name: str, io: CheckpointIO, tmp_path: Path) -> None:
    """The second and third save set an old checkpoint aside; its name has no room for a suffix."""
    for value in (OLD, OLD, NEW):
        io.save_checkpoint(value, tmp_path / name)
    assert found(tmp_path / name, io) == "new"
    assert os.listdir(tmp_path) == [name]


def test_a_save_leaves_checkpoints_with_similar_names_alone(tmp_path: Path) -> None:
    """Also hidden ones."""
    names = [".x.core-old", "x.old", ".x", "x.stale", "x.damaged-1"]
    for name in names:
        IO.save_checkpoint(OLD, tmp_path / name)
    for _ in range(2):
        IO.save_checkpoint(NEW, tmp_path / "x")
    IO.remove_checkpoint(tmp_path / "x")
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    assert {found(tmp_path / name, IO) for name in names} == {"old"}


def strangers_in(path: Path) -> None:
    (path / "notes.txt").write_text("mine")
    (path / "more" / "deep").mkdir(parents=True)
    (path / "more" / "deep" / "figures.csv").write_text("1")
    (path / "link").symlink_to("/etc")


def test_a_strangers_file_beside_the_manifest_stays(tmp_path: Path) -> None:
    """Through saves over it, one that died included, and after the checkpoint is removed."""
    path = tmp_path / "c"
    DIRECTORIES.save_checkpoint(OLD, path)
    strangers_in(path)
    for at in range(number_of_steps(lambda: DIRECTORIES.save_checkpoint(OLD, path))):
        dying(lambda: DIRECTORIES.save_checkpoint(OLD, path), at)
        DIRECTORIES.save_checkpoint(OLD, path)
        assert (path / "notes.txt").read_text() == "mine", at
        assert (path / "more" / "deep" / "figures.csv").read_text() == "1", at
        assert (path / "link").is_symlink(), at
    assert os.listdir(tmp_path) == ["c"]
    DIRECTORIES.save_checkpoint(NEW, path)
    assert found(path, DIRECTORIES) == "new"
    DIRECTORIES.remove_checkpoint(path)
    assert sorted(os.listdir(path)) == ["link", "more", "notes.txt"]
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        DIRECTORIES.save_checkpoint(NEW, path)
