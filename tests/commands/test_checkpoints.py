"""``torch-hal checkpoints``: which checkpoints are in a directory, and whether each is whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Runtime, Trainer
from core.callbacks import ModelCheckpoint
from core.commands.checkpoints import main


class Shrinks(Module):
    """Its weight is half as large after each step, and it logs the weight: the metric follows from the step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.weight.square() / 4

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("weight", self.weight)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints after each of two epochs of three steps and after step 4, of a Runtime, and what is none."""
    data = DataLoader(TensorDataset(torch.ones(3, 1)))
    kept = [
        ModelCheckpoint(tmp_path / "epochs", "{epoch}", save_top_k=-1),
        ModelCheckpoint(tmp_path / "steps", "{step}", every_n_train_steps=4),
    ]
    trainer = Trainer(
        accelerator="cpu", devices=1, max_epochs=2, callbacks=kept, logger=False, enable_progress_bar=False
    )
    trainer.fit(Shrinks(), data, data)
    runtime = Runtime(accelerator="cpu", devices=1)
    runtime.prepare(torch.nn.Linear(2, 2))
    runtime.save_state(tmp_path / "state")
    runtime.end_training()
    (tmp_path / "another").mkdir()
    (tmp_path / "another" / "manifest.json").write_text("{}")
    return tmp_path


def listed(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, dict[str, object]]]:
    code = main([str(folder), "--json", *options])
    rows = json.loads(capsys.readouterr().out)
    return code, {Path(row["path"]).relative_to(folder).as_posix(): row for row in rows}


def test_what_there_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each checkpoint once, in the order of the saves, with its position and the metrics measured there."""
    code, rows = listed(folder, capsys, "--verify")
    facts = {path: (row["epoch"], row["step"], row["metrics"]) for path, row in rows.items()}
    assert code == 0
    assert facts == {
        "state": (None, None, {}),
        "epochs/epoch=0.ckpt": (1, 3, {"weight": 2.0**-3}),
        "epochs/epoch=1.ckpt": (2, 6, {"weight": 2.0**-6}),
        "steps/step=4.ckpt": (1, 4, {}),
    }
    main([str(folder)])
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["CHECKPOINT", "EPOCH", "STEP", "SAVED", "SIZE", "PROCESSES", "METRICS", "STATE"]
    assert [line.split()[0] for line in lines] == list(rows)
    assert all(line.endswith("whole") for line in lines)
    assert "weight=0.125" in lines[1]


def test_a_changed_byte(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes are compared always, checksums with ``--verify``; the exit code says that a checkpoint is damaged."""
    file = folder / "epochs" / "epoch=0.ckpt"
    content = bytearray(file.read_bytes())
    content[1000] ^= 1
    file.write_bytes(content)
    assert listed(folder, capsys)[0] == 0
    code, rows = listed(folder, capsys, "--verify")
    assert code == 1
    assert [path for path, row in rows.items() if row["state"] != "whole"] == ["epochs/epoch=0.ckpt"]
    file.write_bytes(content[:-1])
    assert main([str(folder)]) == 1
    assert "epoch=0.ckpt is damaged: it does not end as a checkpoint does" in capsys.readouterr().out


def test_a_newer_format(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not called damaged."""
    manifest = folder / "state" / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "format_version": 99}))
    code, rows = listed(folder, capsys)
    assert (code, rows["state"]["state"]) == (1, "unreadable")
    assert "pip install --upgrade torch-hal" in str(rows["state"]["problem"])


def test_names_of_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters and line breaks in a name are escaped."""
    (folder / "state").rename(folder / "a\x1b[2J\nb")
    main([str(folder)])
    assert "a\\x1b[2J\\nb" in capsys.readouterr().out


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No checkpoint is no error; no directory is one."""
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"No checkpoints in {tmp_path}.\n"
    assert main([str(tmp_path / "absent")]) == 2
    assert "is not a directory" in capsys.readouterr().err


def test_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    """The checkpoints in a folder of a remote file system."""
    url = "memory://checkpoints-verb"
    runtime = Runtime(accelerator="cpu", devices=1)
    runtime.save({"value": 1}, f"{url}/one")
    runtime.end_training()
    assert main([url, "--verify", "--json"]) == 0
    assert [row["path"] for row in json.loads(capsys.readouterr().out)] == [f"{url}/one"]
