"""Checkpoints whose tensors are divided among processes: written and read together, or by one alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from core.checkpoints import ShardedCheckpointIO, TorchCheckpointIO, latest, read_manifest
from core.convert import main
from core.errors import CheckpointError, ConfigurationError, WrongTypeError

from .conftest import run_script

WHOLE = torch.arange(15.0).reshape(5, 3)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left."""
    folder = tmp_path_factory.mktemp("shards")
    run_script(folder, "shards.py")
    return folder


@pytest.fixture(scope="module")
def said(out: Path) -> dict[str, Any]:
    """What they said."""
    said: dict[str, Any] = json.loads((out / "said.json").read_text())
    return said


def test_each_process_reads_its_part(said: dict[str, Any]) -> None:
    """A tensor comes back divided, of five rows three and two; the rest as process 0 wrote it."""
    assert said["committed"]
    assert said["local rows"] == [WHOLE[:3].tolist(), WHOLE[3:].tolist()]
    assert said["divided"] == [tensor.tolist() for tensor in (WHOLE, WHOLE + 1, WHOLE * 2, WHOLE * 3)]
    assert said["rest"] == [[1.0, 1.0], 7, 0]


def test_read_whole_with_and_without_a_process_group(said: dict[str, Any], out: Path) -> None:
    """Every tensor is whole where it is not asked for in parts."""
    assert said["whole"] == WHOLE.tolist()
    read = ShardedCheckpointIO().load_checkpoint(out / "saved", map_location="cpu")
    assert torch.equal(read["model"]["rows"], WHOLE)
    assert torch.equal(read["model.rows"], WHOLE * 3)
    assert read["own"] == 0


@pytest.mark.parametrize(
    ("case", "arguments"),
    [
        ("one cannot write", ["no such disk", "no such disk"]),
        ("unreadable", ["checkpoint['lambda']", "rank 0 could not do its part"]),
        ("in a tuple", ["'model' is a tuple", "'model' is a tuple"]),
        ("absent", ["it does not exist", "it does not exist"]),
        ("damaged", ["CRC-32", "CRC-32"]),
    ],
)
def test_all_processes_fail_together(said: dict[str, Any], case: str, arguments: list[str]) -> None:
    """An error in one is an error in all; none waits for another."""
    for text, fragment in zip(said[case], arguments, strict=True):
        assert fragment in text


def test_what_fails_leaves_what_was_there(said: dict[str, Any], out: Path) -> None:
    """The checkpoint before stays, and no temporary directory."""
    assert said["kept"] == WHOLE.tolist()
    assert not list(out.glob(".core-tmp-*"))


def test_manifest_names_the_files_of_every_process(out: Path) -> None:
    """Sizes and checksums of all shards stand in it."""
    manifest = read_manifest(out / "saved")
    assert manifest.checkpoint_io == "sharded"
    assert {".metadata", "__0_0.distcp", "__1_0.distcp", "shard-00000.pt"} == set(manifest.files)
    assert latest(out) == out / "damaged"  # by sizes, nothing is wrong with it


def test_damage_is_found(out: Path) -> None:
    """One process alone compares every checksum."""
    with pytest.raises(CheckpointError, match="CRC-32"):
        ShardedCheckpointIO().load_checkpoint(out / "damaged")


def test_the_other_io_refuses_it_by_name(out: Path) -> None:
    """Whoever names the wrong CheckpointIO is told the right one."""
    with pytest.raises(CheckpointError, match="Set checkpoint_io='sharded'"):
        TorchCheckpointIO().load_checkpoint(out / "saved")


def test_it_reads_and_writes_in_one_process(tmp_path: Path) -> None:
    """Without processes or divided tensors it keeps a checkpoint like any other, and reads the other IO's."""
    checkpoint = {"step": 3, "weights": torch.eye(2)}
    for io in (ShardedCheckpointIO(), TorchCheckpointIO()):
        io.save_checkpoint(checkpoint, tmp_path / "one")
        read = ShardedCheckpointIO().load_checkpoint(tmp_path / "one")
        assert read["step"] == 3
        assert torch.equal(read["weights"], torch.eye(2))
    ShardedCheckpointIO().remove_checkpoint(tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_refusals(tmp_path: Path) -> None:
    """Options that there are not, and what is not a checkpoint or no device."""
    io = ShardedCheckpointIO()
    with pytest.raises(ConfigurationError, match="storage_options"):
        io.save_checkpoint({}, tmp_path / "one", storage_options={})
    with pytest.raises(WrongTypeError, match="must be a dict"):
        io.save_checkpoint([], tmp_path / "one")  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match="map_location"):
        io.load_checkpoint(tmp_path / "one", map_location={})


def test_gradients_are_clipped_by_the_norm_of_the_whole(said: dict[str, Any]) -> None:
    """Of divided gradients, whole ones and copies together, as of the same gradients in one process."""
    gradients = [WHOLE.clone(), WHOLE.clone(), WHOLE + 1]
    expected = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    norm, clipped = said["norm"]
    assert norm == pytest.approx(float(expected))
    for found, gradient in zip(clipped, gradients, strict=True):
        torch.testing.assert_close(torch.tensor(found), gradient * 0.5 / expected)


def test_convert_makes_one_file(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``python -m core.convert DIR FILE`` writes what ``torch.load`` reads, every tensor whole."""
    assert main([str(out / "saved"), str(tmp_path / "one.pt")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'one.pt'}\n"
    read = torch.load(tmp_path / "one.pt", weights_only=True)
    assert torch.equal(read["model"]["rows"], WHOLE)
    assert torch.equal(read["parts"][0]["rows"], WHOLE * 2)


def test_convert_writes_next_to_the_directory(tmp_path: Path) -> None:
    """Without a name, the file has the directory's with ``.pt``; a checkpoint of one file is taken as well."""
    TorchCheckpointIO().save_checkpoint({"step": 3}, tmp_path / "last")
    assert main([f"{tmp_path / 'last'}/"]) == 0
    assert torch.load(tmp_path / "last.pt", weights_only=True) == {"step": 3}


@pytest.mark.parametrize("case", ["absent", "damaged", "there already"])
def test_convert_refuses(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    """It says why and returns 2, and no file is written or overwritten."""
    target = tmp_path / "one.pt"
    if case == "there already":
        target.write_text("mine")
    source = {"absent": tmp_path / "absent", "damaged": out / "damaged", "there already": out / "saved"}[case]
    assert main([str(source), str(target)]) == 2
    assert "CheckpointError: " in capsys.readouterr().err
    assert target.read_text() == "mine" if case == "there already" else not target.exists()
