"""What a checkpoint says is data: resuming from anyone's does not touch what this run has not written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from core.callbacks import ModelCheckpoint
from core.checkpoints import TorchCheckpointIO
from core.errors import CheckpointError
from core.loggers import CSVLogger, JSONLogger, TensorBoardLogger
from core.loggers.folders import FolderLogger

from .regression import Regression, loader, quiet

LOGGERS = [CSVLogger, JSONLogger, TensorBoardLogger]


class Logged(Regression):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("x", float(batch_idx), on_step=True, on_epoch=False)


def forge(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the checkpoint again with other content: it looks undamaged."""
    checkpoint = TorchCheckpointIO().load_checkpoint(path)
    change(checkpoint)
    TorchCheckpointIO().save_checkpoint(checkpoint, path)


def fit(log: FolderLogger, epochs: int, **options: Any) -> Any:
    trainer = quiet(max_epochs=epochs, logger=log, log_every_n_steps=1)
    trainer.fit(Logged(), loader(), **options)
    return trainer


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("kind", LOGGERS)
@pytest.mark.parametrize("version", ["../../victim", "{victim}", "x/../../../victim", ["a"]])
def test_logs_outside_of_the_runs_folder_are_not_touched(version: Any, kind: Any, tmp_path: Path) -> None:
    """A logger's version that leads elsewhere is an error, before anything there is cut or removed."""
    if kind is TensorBoardLogger:
        pytest.importorskip("tensorboard")
    victim = tmp_path / "victim"
    fit(kind(tmp_path, name=None, version="victim"), 2).save_checkpoint(tmp_path / "of victim")
    before = content(victim)
    fit(kind(tmp_path / "logs", name="own"), 1).save_checkpoint(tmp_path / "saved")

    def change(checkpoint: dict[str, Any]) -> None:
        given = version.format(victim=victim) if isinstance(version, str) else version
        checkpoint["loggers"][0] |= {"version": given, "mark": (victim / ".core-run").read_text()}
        checkpoint["loggers"][0] |= {"rows": 0, "columns": [], "size": 0, "events": {}}

    forge(tmp_path / "saved", change)
    with pytest.raises(CheckpointError, match=r"part 'loggers' could not be loaded"):
        fit(kind(tmp_path / "logs", name="own"), 2, ckpt_path=tmp_path / "saved")
    assert content(victim) == before


@pytest.mark.parametrize("kind", LOGGERS)
@pytest.mark.parametrize("mark", [None, "", "0" * 32])
def test_logs_of_another_run_are_not_touched(mark: str | None, kind: Any, tmp_path: Path) -> None:
    """Also in the same folder of runs: only a checkpoint of the run that wrote there continues its files."""
    if kind is TensorBoardLogger:
        pytest.importorskip("tensorboard")
    fit(kind(tmp_path, name="own"), 2)
    before = content(tmp_path / "own" / "version_0")
    fit(kind(tmp_path, name="own"), 1).save_checkpoint(tmp_path / "saved")

    def change(checkpoint: dict[str, Any]) -> None:
        checkpoint["loggers"][0] |= {"version": 0, "mark": mark, "rows": 0, "columns": [], "size": 0, "events": {}}

    forge(tmp_path / "saved", change)
    resumed = fit(kind(tmp_path, name="own"), 2, ckpt_path=tmp_path / "saved")
    assert content(tmp_path / "own" / "version_0") == before
    assert resumed.logger.version == 2


def test_event_files_in_a_folder_of_their_own_are_continued(tmp_path: Path) -> None:
    """What was written after the checkpoint is dropped, as of a run without ``sub_dir``."""
    pytest.importorskip("tensorboard")
    log = TensorBoardLogger(tmp_path, sub_dir="events")
    fit(log, 1).save_checkpoint(tmp_path / "saved")
    size = sum(map(len, content(Path(log.log_dir)).values()))
    fit(log, 2, ckpt_path=tmp_path / "saved")
    assert sum(map(len, content(Path(log.log_dir)).values())) > size
    resumed = TensorBoardLogger(tmp_path, sub_dir="events")
    fit(resumed, 1, ckpt_path=tmp_path / "saved")
    assert resumed.version == log.version == 0
    assert len(list(Path(log.log_dir).glob("events.*"))) == 1


@pytest.mark.parametrize("rows", [-1, "1", None, 2**70])
def test_a_logger_that_says_nonsense(rows: Any, tmp_path: Path) -> None:
    """Numbers of another form are an error that names the part, and numbers that cannot be keep what is there."""
    fit(CSVLogger(tmp_path), 1).save_checkpoint(tmp_path / "saved")
    forge(tmp_path / "saved", lambda checkpoint: checkpoint["loggers"][0].update(rows=rows))
    if isinstance(rows, int):
        fit(CSVLogger(tmp_path), 2, ckpt_path=tmp_path / "saved")
        return
    with pytest.raises(CheckpointError, match=r"part 'loggers' could not be loaded"):
        fit(CSVLogger(tmp_path), 2, ckpt_path=tmp_path / "saved")


class Scored(Regression):
    def on_train_epoch_end(self) -> None:
        self.log("score", -float(self.current_epoch))


def name_as_worse(path: str) -> Callable[[dict[str, Any]], None]:
    def change(checkpoint: dict[str, Any]) -> None:
        (state,) = (state for key, state in checkpoint["callbacks"].items() if "ModelCheckpoint" in key)
        state |= {"best_k_models": {path: torch.tensor(9.0)}, "best_model_path": path, "last_model_path": path}
        state["kth_best_model_path"] = path

    return change


@pytest.mark.parametrize("name", ["notes.txt", "data", "link", "link to a file"])
def test_what_is_no_checkpoint_is_not_removed(name: str, tmp_path: Path) -> None:
    """A file, a folder or a link that a checkpoint names as a worse one, in the directory of checkpoints itself."""
    folder = tmp_path / "ck"
    trainer = quiet(max_epochs=1, callbacks=ModelCheckpoint(folder, monitor="score"), enable_checkpointing=True)
    trainer.fit(Scored(), loader())
    shutil.copy(folder / "epoch=0-step=7.ckpt", tmp_path / "saved")
    (folder / "notes.txt").write_text("mine")
    (folder / "data").mkdir()
    (folder / "data" / "x").write_text("mine")
    (folder / "link").symlink_to(folder / "data")
    (folder / "link to a file").symlink_to(folder / "notes.txt")
    forge(tmp_path / "saved", name_as_worse(str(folder / name)))
    resumed = quiet(max_epochs=2, callbacks=ModelCheckpoint(folder, monitor="score"), enable_checkpointing=True)
    resumed.fit(Scored(), loader(), ckpt_path=tmp_path / "saved")
    assert {"notes.txt", "data", "link", "link to a file"} <= set(os.listdir(folder))
    assert (folder / "notes.txt").read_text() == (folder / "data" / "x").read_text() == "mine"


@pytest.mark.parametrize("name", ["../other/c", "{other}/c", "../ck/../other/c"])
def test_checkpoints_outside_of_the_directory_are_an_error(name: str, tmp_path: Path) -> None:
    """The error names the path and the directory; what is there stays."""
    folder, other = tmp_path / "ck", tmp_path / "other"
    for where in (folder, other):
        trainer = quiet(max_epochs=1, callbacks=ModelCheckpoint(where, monitor="score"), enable_checkpointing=True)
        trainer.fit(Scored(), loader())
    (other / "epoch=0-step=7.ckpt").rename(other / "c")
    path = os.path.join(folder, name.format(other=other))
    forge(folder / "epoch=0-step=7.ckpt", name_as_worse(path))
    resumed = quiet(max_epochs=2, callbacks=ModelCheckpoint(folder, monitor="score"), enable_checkpointing=True)
    with pytest.raises(CheckpointError, match=r"/c', which is not in its directory '.*/ck'"):
        resumed.fit(Scored(), loader(), ckpt_path=folder / "epoch=0-step=7.ckpt")
    assert os.listdir(other) == ["c"]


def test_a_run_that_was_resumed_elsewhere_is_resumed_again(tmp_path: Path) -> None:
    """Its best checkpoint may still be in the first run's directory, and stays there."""
    for number, epochs in enumerate((1, 2, 3, 4)):
        folder, before = tmp_path / f"{min(number, 2)}", tmp_path / f"{max(number - 1, 0)}.saved"
        checkpoint = ModelCheckpoint(folder, monitor="score", save_top_k=1 if number == 0 else 0, save_last=number > 0)
        trainer = quiet(max_epochs=epochs, callbacks=checkpoint, enable_checkpointing=True)
        trainer.fit(Scored(), loader(), ckpt_path=before if number else None)
        assert checkpoint.best_model_path == str(tmp_path / "0" / "epoch=0-step=7.ckpt")
        trainer.save_checkpoint(tmp_path / f"{number}.saved")
    assert os.listdir(tmp_path / "0") == ["epoch=0-step=7.ckpt"]


def test_a_worse_checkpoint_of_the_run_that_is_resumed_is_removed(tmp_path: Path) -> None:
    """As before: it has a manifest and is in the directory."""
    folder = tmp_path / "ck"
    trainer = quiet(max_epochs=1, callbacks=ModelCheckpoint(folder, monitor="score"), enable_checkpointing=True)
    trainer.fit(Scored(), loader())
    trainer.save_checkpoint(tmp_path / "saved")
    resumed = quiet(max_epochs=2, callbacks=ModelCheckpoint(folder, monitor="score"), enable_checkpointing=True)
    resumed.fit(Scored(), loader(), ckpt_path=tmp_path / "saved")
    assert os.listdir(folder) == ["epoch=1-step=14.ckpt"]


class Mean:
    """A metric object with the interface of torchmetrics."""

    def __init__(self) -> None:
        self.total, self._update_count, self.path = torch.zeros(()), 0, "own"

    @property
    def metric_state(self) -> dict[str, Any]:
        return {"total": self.total}

    def update(self, value: Any) -> None:
        self.total = self.total + value

    def compute(self) -> Any:
        return self.total

    def reset(self) -> None:
        self.total = torch.zeros(())


class WithMetric(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.mean = Mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.mean.update(1.0)
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("attribute", "states", "message"),
    [
        ("trainer", {"_given_ckpt_path": "x"}, "no metric object 'trainer'"),
        ("__class__", {"forward": 0}, "no metric object '__class__'"),
        ("mean", {"path": "changed"}, "Mean has no state 'path'"),
    ],
)
def test_only_the_states_of_metric_objects_are_set(
    attribute: str, states: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """A checkpoint names the attribute that a metric object is: no other object's attributes are set."""

    class Saves(WithMetric):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 3 and not (tmp_path / "saved").exists():
                self.trainer.save_checkpoint(tmp_path / "saved")

    quiet(max_epochs=1).fit(Saves(), loader())

    def change(checkpoint: dict[str, Any]) -> None:
        (entry,) = checkpoint["processes"][0]["metrics"]
        entry[-1] |= {"attribute": attribute, "object": {"states": states, "updates": 0}}

    forge(tmp_path / "saved", change)
    module = WithMetric()
    with pytest.raises(CheckpointError, match=message):
        quiet(max_epochs=1).fit(module, loader(), ckpt_path=tmp_path / "saved")
    assert module.mean.path == "own"
