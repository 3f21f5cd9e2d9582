"""A checkpoint of anyone's: DeepSpeed unpickles the files in its folder, so no others may be there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_hal_deepspeed.checkpoints import DeepSpeedCheckpointIO

from torch_hal.checkpoints import SHARD, FileRecord, Manifest, committed_directory, write_shard
from torch_hal.errors import CheckpointError

pytestmark = pytest.mark.timeout(60)

WEIGHTS = "mp_rank_00_model_states.pt"


class Attack:
    """What an attacker writes: unpickling it creates a folder."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.proof),)


def saved(folder: Path, **described: Any) -> Path:
    """A checkpoint that says of itself that an engine wrote the module's state, without the engine's folder."""
    path = folder / "saved"
    state = {"deepspeed engine": "engine", "prefix": "", "stage": 0, "processes": 1, **described}
    with committed_directory(path) as directory:
        write_shard({"state_dict": state, "optimizer_states": [state]}, directory / SHARD, path)
        listed(directory)
    return path


def listed(path: Path, *names: str) -> None:
    """Write these files into the manifest."""
    files = {name: FileRecord.of(path / name) for name in (SHARD, *names)}
    Manifest(files=files, checkpoint_io="deepspeed").write(path)


def plant(file: Path, proof: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"module": Attack(proof)}, file)


def link(file: Path, proof: Path) -> None:
    plant(proof.with_name("elsewhere.pt"), proof)
    file.parent.mkdir(exist_ok=True)
    file.symlink_to(proof.with_name("elsewhere.pt"))


def link_folder(file: Path, proof: Path) -> None:
    plant(proof.with_name("elsewhere") / file.name, proof)
    file.parent.symlink_to(proof.with_name("elsewhere"))


def pipe(file: Path, proof: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        (f"engine/{WEIGHTS}", plant),
        ("engine/zero_pp_rank_1_mp_rank_00_optim_states.pt", plant),
        ("engine/deeper/layer_00.pt", plant),
        (f"engine/{WEIGHTS}", link),
        (f"engine/{WEIGHTS}", link_folder),
        (f"engine/{WEIGHTS}", pipe),
    ],
)
def test_what_the_manifest_does_not_list_is_not_read(
    name: str, attack: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    """The engine would unpickle it; the error names the file."""
    path, proof = saved(tmp_path), tmp_path / "proof"
    attack(path / name, proof)
    with pytest.raises(CheckpointError, match=r"saved/engine.* does not belong to the checkpoint"):
        DeepSpeedCheckpointIO().load_checkpoint(path)
    assert not proof.exists()


@pytest.mark.parametrize("name", [WEIGHTS, "mp_rank_00_model_states.bin", "latest"])
def test_code_in_a_listed_file_is_not_read(name: str, tmp_path: Path) -> None:
    """Whatever the file is called."""
    path, proof = saved(tmp_path), tmp_path / "proof"
    plant(path / "engine" / name, proof)
    listed(path, f"engine/{name}")
    with pytest.raises(CheckpointError, match=rf"{name} is not read: it contains posix\.mkdir"):
        DeepSpeedCheckpointIO().load_checkpoint(path)
    assert not proof.exists()


@pytest.mark.parametrize("wrong", [{"stage": 7}, {"prefix": 3}, {"processes": "all"}])
def test_an_engine_that_cannot_be_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    """As damage, with what the checkpoint says."""
    with pytest.raises(CheckpointError, match=rf"describes DeepSpeed's engine as .*'{next(iter(wrong))}'"):
        DeepSpeedCheckpointIO().load_checkpoint(saved(tmp_path, **wrong))


@pytest.mark.deepspeed
def test_the_engine_itself_reads_no_code(tmp_path: Path) -> None:
    """The module's weights are not unpickled, also not from a file that was changed since."""
    path, proof = saved(tmp_path), tmp_path / "proof"
    torch.save({"module": {"w": torch.ones(3)}}, tmp_path / "good.pt")
    (path / "engine").mkdir()
    (tmp_path / "good.pt").rename(path / "engine" / WEIGHTS)
    listed(path, f"engine/{WEIGHTS}")
    state = DeepSpeedCheckpointIO().load_checkpoint(path)["state_dict"]
    assert torch.equal(state.weights()["w"], torch.ones(3))
    plant(path / "engine" / WEIGHTS, proof)
    with pytest.raises(CheckpointError, match="DeepSpeed cannot read the weights"):
        state.weights()
    assert not proof.exists()
