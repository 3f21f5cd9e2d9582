"""What two processes saved, any number loads; and one file of it."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_hal_deepspeed import DeepSpeedStrategy, library
from torch_hal_deepspeed.checkpoints import convert_to_universal, write_enums_by_value

import torch_hal
from torch_hal.checkpoints import is_committed, latest, read_manifest
from torch_hal.errors import CheckpointError

from .conftest import STAGES, run, said

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``saves.py`` has saved each stage on two processes after three steps, and gone on for three."""
    out = tmp_path_factory.mktemp("saved")
    run(out, "saves.py", "save", 2, *STAGES)
    return out


class Loaded(dict[int, dict[str, Any]]):
    """By number of processes: what they say that loaded it and went on; they run when that is asked for."""

    def __init__(self, saved: Path) -> None:
        super().__init__()
        self.saved = saved

    def __missing__(self, processes: int) -> dict[str, Any]:
        names = [*STAGES, "1as:2"] if processes == 1 else STAGES
        run(self.saved, "saves.py", "load", processes, *names)
        self[processes] = said(self.saved / f"load-{processes}-0.json")
        return self[processes]


@pytest.fixture(scope="module")
def loaded(saved: Path) -> Loaded:
    """What processes say that loaded it and went on."""
    return Loaded(saved)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("processes", [1, 2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_any_number_of_processes_goes_on(saved: Path, loaded: Loaded, processes: int, stage: str) -> None:
    """Evaluation right after loading is that of before, and training goes on as without the interruption."""
    whole, found = said(saved / "save-2-0.json")[stage], loaded[processes][stage]
    assert found["note"] == "third"
    assert found["evaluated"] == pytest.approx(whole["evaluated"], rel=1e-6)
    assert found["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    assert found["names"] == whole["names"]
    if processes == 2:
        assert (found["losses"], found["evaluated"]) == (whole["losses"], whole["evaluated"])


def test_stages_of_one_form_load_each_other(saved: Path, loaded: Loaded) -> None:
    """What stage 1 saved, stage 2 goes on with, on another number of processes."""
    whole, found = said(saved / "save-2-0.json")["1"], loaded[1]["1as:2"]
    assert found["losses"] == pytest.approx(whole["losses"], rel=1e-5)


def test_stages_of_another_form_are_refused(saved: Path) -> None:
    """The optimizer's state of stage 2 is refused by stage 3, by name."""
    ended = run(saved, "saves.py", "load", 1, "2as:3", code=1)
    assert "saved with stage=2. This run has stage=3" in ended.stderr


def test_momentum_goes_to_as_many_processes_only(tmp_path: Path) -> None:
    """Of an optimizer that DeepSpeed's converter does not know, that is said, and not where it broke off."""
    with torch_hal.Runtime(accelerator="cpu", strategy=DeepSpeedStrategy(stage=1), devices=1) as runtime:
        own = torch.nn.Linear(4, 2)
        model, optimizer = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9))
        runtime.backward(model(torch.ones(1, 4)).sum())
        optimizer.step()
        runtime.save({"model": model, "optimizer": optimizer}, tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"such as Adam's.*Use as many processes"):
        convert_to_universal(tmp_path / "saved" / "engine", tmp_path / "universal")


def test_nothing_is_left_next_to_the_checkpoints(saved: Path, loaded: Loaded) -> None:
    """Neither what was staged nor what was converted stays."""
    assert loaded[1]
    assert sorted(item.name for item in saved.iterdir() if item.is_dir()) == [f"saved-{stage}" for stage in STAGES]


@pytest.mark.parametrize("stage", STAGES)
def test_it_is_committed_like_any_checkpoint(saved: Path, stage: str) -> None:
    """The manifest lists every file of every process, and says who wrote it."""
    directory = saved / f"saved-{stage}"
    manifest = read_manifest(directory)
    files = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    assert files == {*manifest.files, "manifest.json"}
    assert (manifest.checkpoint_io, manifest.world_size) == ("deepspeed", 2)
    assert is_committed(directory)
    assert latest(saved) == saved / "saved-3"


@pytest.mark.parametrize("stage", ["1", "2"])
def test_each_process_writes_its_part_alone(saved: Path, stage: str) -> None:
    """Of the parameters that its optimizer steps, each file of a process holds these, and no other process's."""
    files = sorted((saved / f"saved-{stage}" / "engine").glob("*optim_states.pt"))
    assert len(files) == 2
    for file in files:
        for part in torch.load(file, weights_only=False)["optimizer_state_dict"]["single_partition_of_fp32_groups"]:
            assert 0 < part.untyped_storage().nbytes() == part.nbytes


@pytest.mark.parametrize("stage", STAGES)
def test_consolidated_weights_are_the_models(saved: Path, loaded: Loaded, stage: str) -> None:
    """One file, read by torch alone: the user's names, whole tensors in float32, with the loss that was evaluated."""
    file = saved / f"weights-{stage}.pt"
    ended = run(saved, "-m", "torch_hal_deepspeed.consolidate", saved / f"saved-{stage}", file)
    assert ended.stdout == f"{file}\n"
    weights = torch.load(file, weights_only=True)
    assert sorted(weights) == loaded[1][stage]["names"]
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    evaluated = run(saved, "plain.py", file).stdout
    assert float(evaluated) == pytest.approx(loaded[1][stage]["evaluated"], rel=1e-6)


def test_consolidating_names_what_is_wrong(saved: Path) -> None:
    """A damaged checkpoint, a file that is there, a name that is not: exit code 2 and the reason."""
    command = ("-m", "torch_hal_deepspeed.consolidate")
    damaged = saved / "elsewhere" / "damaged"
    shutil.copytree(saved / "saved-2", damaged)
    victim = next(damaged.glob("engine/*optim_states.pt"))
    victim.write_bytes(bytes([victim.read_bytes()[0] ^ 1]) + victim.read_bytes()[1:])
    assert "is damaged" in run(saved, *command, damaged, code=2).stderr
    os.remove(victim)
    assert "is missing" in run(saved, *command, damaged, code=2).stderr
    shutil.rmtree(damaged.parent)
    assert "already exists" in run(saved, *command, saved / "saved-2", __file__, code=2).stderr
    assert "'model'" in run(saved, *command, saved / "saved-2", "--part", "teacher", code=2).stderr


def test_a_divided_model_is_loaded_and_saved_without_an_optimizer(tmp_path: Path) -> None:
    """One made divided takes the weights of a training, and what is saved of it, run or not, has them all."""
    run(tmp_path, "inference.py")
    found = said(tmp_path / "said.json")
    for name in ("loaded", "before", "after"):
        assert found[name] == pytest.approx(found["trained"], rel=1e-6)


def test_each_group_gets_its_own_options_back(tmp_path: Path) -> None:
    """On another number of processes too, the learning rates of several groups stay apart."""
    run(tmp_path, "groups.py", "save", 2, "2", "3")
    run(tmp_path, "groups.py", "load", 1, "2", "3")
    assert said(tmp_path / "rates.json") == {"2": [1e-3, 3e-3], "3": [1e-3, 3e-3]}


@pytest.mark.parametrize("name", ["OffloadDeviceEnum", "ZeroStageEnum"])
def test_enums_are_written_alike_by_every_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.0 to 3.11.3 would write a call of ``getattr``, and the file would be refused as code."""
    kind = getattr(library.part("runtime.zero.config"), name)
    monkeypatch.setattr(kind, "__reduce_ex__", lambda member, protocol: (getattr, (type(member), member.name)))
    write_enums_by_value()
    for member in kind:
        assert b"getattr" not in pickle.dumps(member)
        assert pickle.loads(pickle.dumps(member)) is member
