"""Where the checkpoints of a run go: each run has its own folder, and "last" finds the newest of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.callbacks import ModelCheckpoint
from core.errors import CheckpointError
from core.loggers import CSVLogger

from .regression import Regression, loader, quiet


def test_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` is expanded in every path, and no folder of that name is made."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    trainer = quiet(max_epochs=1, callbacks=ModelCheckpoint("~/x"), enable_checkpointing=True)
    trainer.fit(Regression(), loader())
    trainer.save_checkpoint("~/y/after")
    other = quiet(max_epochs=1, default_root_dir="~/z", enable_checkpointing=True)
    other.fit(Regression(), loader(), ckpt_path="~/y/after")
    assert sorted(os.listdir(tmp_path)) == ["x", "y", "z"]
    assert os.listdir(tmp_path / "x") == ["epoch=0-step=7.ckpt"]


def test_two_runs_do_not_destroy_each_others_checkpoints(tmp_path: Path) -> None:
    """Same root, same names: both keep their own."""
    for expected in ("version_0", "version_1", "version_2"):
        trainer = quiet(max_epochs=2, default_root_dir=tmp_path, enable_checkpointing=True)
        trainer.fit(Regression(), loader())
        assert isinstance(trainer.checkpoint_callback, ModelCheckpoint)
        assert trainer.checkpoint_callback.best_model_path == str(
            tmp_path / "checkpoints" / expected / "epoch=1-step=14.ckpt"
        )
    for version in range(3):
        assert os.listdir(tmp_path / "checkpoints" / f"version_{version}") == ["epoch=1-step=14.ckpt"]


def test_two_fits_of_one_trainer_are_two_runs(tmp_path: Path) -> None:
    """The second one starts at epoch 0, in its own folder."""
    trainer = quiet(max_epochs=1, default_root_dir=tmp_path, enable_checkpointing=True)
    trainer.fit(Regression(), loader())
    trainer.fit(Regression(), loader())
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["version_0", "version_1"]


def test_a_resumed_run_continues_in_its_folder(tmp_path: Path) -> None:
    """With ``"last"`` and with the path; the checkpoint that the user named is kept."""
    quiet(max_epochs=1, default_root_dir=tmp_path, enable_checkpointing=True).fit(Regression(), loader())
    quiet(max_epochs=2, default_root_dir=tmp_path, enable_checkpointing=True).fit(
        Regression(), loader(), ckpt_path="last"
    )
    folder = tmp_path / "checkpoints" / "version_0"
    assert os.listdir(folder) == ["epoch=1-step=14.ckpt"]
    quiet(max_epochs=3, default_root_dir=tmp_path, enable_checkpointing=True).fit(
        Regression(), loader(), ckpt_path=folder / "epoch=1-step=14.ckpt"
    )
    assert sorted(os.listdir(folder)) == ["epoch=1-step=14.ckpt", "epoch=2-step=21.ckpt"]
    assert os.listdir(tmp_path / "checkpoints") == ["version_0"]


def test_the_last_is_the_newest_of_all_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also if an earlier run has more steps. The runs' own folders are not taken for damaged checkpoints."""
    for epochs in (3, 1):
        quiet(max_epochs=epochs, default_root_dir=tmp_path, enable_checkpointing=True).fit(Regression(), loader())
    trainer = quiet(max_epochs=2, default_root_dir=tmp_path)
    trainer.fit(Regression(), loader(), ckpt_path="last")
    assert trainer.ckpt_path == str(tmp_path / "checkpoints" / "version_1" / "epoch=0-step=7.ckpt")
    assert "damaged" not in caplog.text


def test_a_logger_with_a_folder_for_each_run(tmp_path: Path) -> None:
    """The checkpoints lie in it, and "last" looks into those of other runs."""

    class Log:
        def __init__(self, version: int) -> None:
            self.save_dir, self.log_dir = str(tmp_path), str(tmp_path / "logs" / f"version_{version}")

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            pass

    quiet(max_epochs=1, logger=Log(0), enable_checkpointing=True, default_root_dir=tmp_path).fit(Regression(), loader())
    assert os.listdir(tmp_path / "logs" / "version_0" / "checkpoints") == ["epoch=0-step=7.ckpt"]
    trainer = quiet(max_epochs=2, logger=Log(1), enable_checkpointing=True, default_root_dir=tmp_path)
    trainer.fit(Regression(), loader(), ckpt_path="last")
    assert os.listdir(tmp_path / "logs" / "version_0" / "checkpoints") == ["epoch=0-step=7.ckpt"]
    assert os.listdir(tmp_path / "logs" / "version_1" / "checkpoints") == ["epoch=1-step=14.ckpt"]


def test_a_folder_that_is_read_before_the_run_is_the_runs(tmp_path: Path) -> None:
    """A script makes folders in it; another run that begins meanwhile takes the next one."""
    first, second = CSVLogger(tmp_path), CSVLogger(tmp_path)
    pictures = Path(first.log_dir, "pictures")
    pictures.mkdir(parents=True, exist_ok=True)
    assert second.log_dir != first.log_dir
    for logger in (second, first):
        quiet(max_epochs=1, logger=logger, log_every_n_steps=1).fit(Regression(), loader(), loader())
    assert sorted(os.listdir(pictures.parents[1])) == ["version_0", "version_1"]
    assert {"metrics.csv", "pictures"} <= set(os.listdir(pictures.parent))


def test_the_same_directory_twice(tmp_path: Path) -> None:
    """A checkpoint of another run in a directory that the user named is not replaced, unless that is asked for."""
    for enable, expected in (
        (True, ["epoch=0-step=7.ckpt"]),
        (True, ["epoch=0-step=7-v1.ckpt", "epoch=0-step=7.ckpt"]),
        (False, ["epoch=0-step=7-v1.ckpt", "epoch=0-step=7.ckpt"]),
    ):
        checkpoint = ModelCheckpoint(tmp_path, enable_version_counter=enable)
        quiet(max_epochs=1, callbacks=checkpoint, enable_checkpointing=True).fit(Regression(), loader())
        assert sorted(os.listdir(tmp_path)) == expected


def test_the_best_of_the_last_fit(tmp_path: Path) -> None:
    """``ckpt_path="best"`` in evaluation; an error before any fit."""

    class Worsening(Regression):
        def on_train_epoch_end(self) -> None:
            self.log("score", float(self.current_epoch))

    checkpoint = ModelCheckpoint(tmp_path, monitor="score", save_top_k=-1)
    trainer = quiet(max_epochs=3, callbacks=checkpoint, enable_checkpointing=True)
    with pytest.raises(CheckpointError, match="ckpt_path='best': no ModelCheckpoint"):
        trainer.test(Worsening(), loader(), ckpt_path="best")
    module = Worsening()
    trainer.fit(module, loader())
    after_fit = trainer.test(module, loader())
    best = trainer.test(module, loader(), ckpt_path="best")
    assert trainer.ckpt_path == str(tmp_path / "epoch=0-step=7.ckpt")
    assert best != after_fit
    assert best == quiet().test(Worsening(), loader(), ckpt_path=tmp_path / "epoch=0-step=7.ckpt")


def test_a_root_that_cannot_be_written(tmp_path: Path) -> None:
    """An error before training, that names the argument."""
    (tmp_path / "file").write_text("")
    trainer = quiet(max_epochs=1, default_root_dir=tmp_path / "file", enable_checkpointing=True)
    with pytest.raises(CheckpointError, match=r"default_root_dir=.*no folder for checkpoints can be created"):
        trainer.fit(Regression(), loader())
