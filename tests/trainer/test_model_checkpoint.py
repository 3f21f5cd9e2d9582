"""When ModelCheckpoint writes, what it keeps, and what it refuses; against what Lightning documents."""

from __future__ import annotations

import errno
import logging
import math
import os
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core import Callback, Trainer
from core.callbacks import ModelCheckpoint, agreement
from core.checkpoints import TorchCheckpointIO, is_committed, latest
from core.errors import CheckpointError, ConfigurationError, WrongTypeError

from .regression import Regression, loader, quiet

SCORES = (5.0, 3.0, 4.0, 1.0, 2.0)


class Scored(Regression):
    """Logs given scores, one in each epoch."""

    scores: tuple[float, ...] = SCORES

    def on_train_epoch_end(self) -> None:
        self.log("score", self.scores[self.current_epoch])


class Validated(Regression):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/score", SCORES[self.current_epoch])


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def step_in(path: str | Path) -> int:
    """The optimizer steps that a checkpoint's weights have taken."""
    return int(TorchCheckpointIO().load_checkpoint(path)["progress"]["step"])


def run(checkpoint: ModelCheckpoint, module: Regression | None = None, validates: bool = False, **settings: Any) -> Any:
    trainer = quiet(**{"max_epochs": 5, "callbacks": checkpoint, "enable_checkpointing": True, **settings})
    trainer.fit(Scored() if module is None else module, loader(), loader() if validates else None)
    return trainer


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["epoch=4-step=35.ckpt"]),
        ({"filename": "{epoch:02d}", "save_top_k": -1}, [f"epoch=0{number}.ckpt" for number in range(5)]),
        ({"filename": "e{epoch}", "auto_insert_metric_name": False}, ["e4.ckpt"]),
        ({"filename": "newest"}, ["newest.ckpt"]),
        ({"every_n_epochs": 2, "filename": "{epoch}", "save_top_k": -1}, ["epoch=1.ckpt", "epoch=3.ckpt"]),
        ({"save_top_k": 0}, []),
        ({"save_top_k": 0, "save_last": True}, ["last.ckpt"]),
        ({"save_last": True, "filename": "{epoch}"}, ["epoch=4.ckpt", "last.ckpt"]),
        ({"monitor": "score", "filename": "{epoch}"}, ["epoch=3.ckpt"]),
        ({"monitor": "score", "mode": "max", "filename": "{epoch}"}, ["epoch=0.ckpt"]),
        ({"monitor": "score", "save_top_k": 2, "filename": "{epoch}"}, ["epoch=3.ckpt", "epoch=4.ckpt"]),
        (
            {"monitor": "score", "save_top_k": 3, "filename": "{score:.1f}", "save_last": True},
            ["last.ckpt", "score=1.0.ckpt", "score=2.0.ckpt", "score=3.0.ckpt"],
        ),
        ({"monitor": "step", "mode": "max", "save_top_k": 2, "filename": "{step}"}, ["step=28.ckpt", "step=35.ckpt"]),
        ({"every_n_train_steps": 10, "filename": "{step}", "save_top_k": -1}, [f"step={n}.ckpt" for n in (10, 20, 30)]),
        ({"every_n_train_steps": 10}, ["epoch=4-step=30.ckpt"]),
        ({"train_time_interval": timedelta(0), "filename": "{step}"}, ["step=35.ckpt"]),
        ({"train_time_interval": timedelta(hours=1)}, []),
    ],
)
def test_what_is_left_after_five_epochs(options: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    """By the arguments."""
    checkpoint = ModelCheckpoint(tmp_path / "here", **options)
    run(checkpoint)
    assert (names(tmp_path / "here") if expected else os.path.exists(tmp_path / "here")) == (expected or False)


def test_the_attributes(tmp_path: Path) -> None:
    """They say what the files do: the best, the worst of the best, the last, and their scores."""
    checkpoint = ModelCheckpoint(tmp_path, "{epoch}", monitor="score", save_top_k=2, save_last=True)
    trainer = run(checkpoint)
    best, second = str(tmp_path / "epoch=3.ckpt"), str(tmp_path / "epoch=4.ckpt")
    assert {path: float(score) for path, score in checkpoint.best_k_models.items()} == {best: 1.0, second: 2.0}
    assert (checkpoint.best_model_path, checkpoint.kth_best_model_path) == (best, second)
    assert checkpoint.best_model_score is not None
    assert checkpoint.current_score is not None
    assert [float(checkpoint.best_model_score), float(checkpoint.current_score), float(checkpoint.kth_value)] == [
        1,
        2,
        2,
    ]
    assert checkpoint.last_model_path == str(tmp_path / "last.ckpt")
    assert trainer.checkpoint_callbacks == [checkpoint]
    checkpoint.to_yaml()
    assert (tmp_path / "best_k_models.yaml").read_text() == f'"{best}": 1.0\n"{second}": 2.0\n'


def test_scores_that_are_no_numbers_are_the_worst(tmp_path: Path) -> None:
    """NaN never replaces a number, and a number replaces NaN."""

    class Diverging(Scored):
        scores = (math.nan, 2.0, math.nan, 3.0, math.inf)

    for mode, best in (("min", "epoch=1.ckpt"), ("max", "epoch=4.ckpt")):
        checkpoint = ModelCheckpoint(tmp_path / mode, "{epoch}", monitor="score", mode=mode)
        run(checkpoint, Diverging())
        assert names(tmp_path / mode) == [best]


def test_a_metric_of_validation_in_the_name(tmp_path: Path) -> None:
    """As in Lightning's documentation, with the name written by hand, since a file name has no slash."""
    checkpoint = ModelCheckpoint(
        tmp_path, "epoch{epoch:02d}-score{val/score:.2f}", monitor="val/score", auto_insert_metric_name=False
    )
    run(checkpoint, Validated(), validates=True)
    assert names(tmp_path) == ["epoch03-score1.00.ckpt"]


def test_validation_in_every_other_epoch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only these epochs have a score to wait for; what waits for none is written in each epoch in which it is due."""
    waits: list[dict[str, Any]] = [{"monitor": "val"}, {"filename": "{epoch}-{val:.0f}"}]
    others: list[dict[str, Any]] = [{}, {"monitor": "epoch_end"}, {"every_n_epochs": 3}]
    for number, options in enumerate([*waits, *others]):
        saves = ModelCheckpoint(tmp_path / f"{number}", **{"filename": "{epoch}", "save_top_k": -1, **options})
        run(saves, Stepwise(), validates=True, check_val_every_n_epoch=2)
    assert "ModelCheckpoint" not in caplog.text
    written = ["".join(name[6] for name in names(tmp_path / f"{number}")) for number in range(5)]
    assert written == ["13", "13", "01234", "01234", "2"]


def test_a_step_that_validation_follows_waits_for_its_metric(tmp_path: Path) -> None:
    """Every seventh step ends an epoch: each checkpoint has that epoch's score, not that of the one before."""
    checkpoint = ModelCheckpoint(tmp_path, "{epoch}", monitor="val/score", save_top_k=-1, every_n_train_steps=7)
    run(checkpoint, Validated(), validates=True)
    found = [float(score) for score in checkpoint.best_k_models.values()]
    assert found == list(SCORES)


def test_a_step_that_no_validation_follows_waits_too(tmp_path: Path) -> None:
    """Steps 4, 8 and 12 have no score: a checkpoint is written after each epoch's validation."""
    checkpoint = ModelCheckpoint(tmp_path, "{step}", monitor="val/score", save_top_k=-1, every_n_train_steps=4)
    run(checkpoint, Validated(), validates=True, max_epochs=2)
    assert names(tmp_path) == ["step=14.ckpt", "step=7.ckpt"]


class Stepwise(Regression):
    """Each metric is the number of steps that the weights it was measured with have taken."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("train", float(self.global_step + 1))
        self.log("epoch_end", float(self.global_step + 1), on_step=False, on_epoch=True, reduce_fx="max")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", float(self.global_step))


@pytest.mark.parametrize(
    ("options", "settings", "steps"),
    [
        ({"every_n_train_steps": 3}, {"val_check_interval": 3}, [3, 6, 10, 13]),
        ({"every_n_train_steps": 3}, {"val_check_interval": 3, "check_val_every_n_epoch": None}, [3, 6, 9, 12]),
        ({"every_n_train_steps": 1}, {"val_check_interval": 0.5}, [3, 6, 10, 13]),
        ({"every_n_train_steps": 2}, {"val_check_interval": 4, "accumulate_grad_batches": 2}, [2, 6]),
        ({"every_n_train_steps": 2}, {"val_check_interval": 3, "accumulate_grad_batches": 2}, [3, 5, 7]),
        ({"every_n_train_steps": 7}, {"check_val_every_n_epoch": 2}, [14]),
        ({"train_time_interval": timedelta(0)}, {"val_check_interval": 3}, [3, 6, 10, 13]),
        ({"every_n_train_steps": 2, "save_last": True}, {"val_check_interval": 5}, [5, 12]),
        ({"save_on_train_epoch_end": True}, {"val_check_interval": 3}, [10]),
        ({"every_n_epochs": 1, "save_on_train_epoch_end": True}, {"check_val_every_n_epoch": 2}, [14]),
        ({"every_n_train_steps": 3, "monitor": "train"}, {"val_check_interval": 5}, [3, 6, 9, 12]),
        ({"every_n_train_steps": 5, "monitor": "epoch_end"}, {"val_check_interval": 5}, [7, 14]),
    ],
)
def test_a_score_belongs_to_the_weights_of_its_checkpoint(
    options: dict[str, Any], settings: dict[str, Any], steps: list[int], tmp_path: Path
) -> None:
    """The step in the checkpoint, its score, its name and the best are those of the same step."""
    saves = ModelCheckpoint(tmp_path, **{"monitor": "val", "mode": "max", "save_top_k": -1, **options})
    run(saves, Stepwise(), validates=True, max_epochs=2, **settings)
    scores = {path: int(score) for path, score in saves.best_k_models.items()}
    assert sorted(scores.values()) == steps
    for path, score in scores.items():
        assert step_in(path) == score
        assert f"step={score}" in path
    assert f"step={steps[-1]}" in saves.best_model_path


def test_the_last_checkpoint_does_not_wait_for_a_score(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Step 10 is written as the last one, although the best are chosen at validations; one warning says so."""
    saves = ModelCheckpoint(tmp_path, "{step}", monitor="val", save_last=True, every_n_train_steps=5)
    run(saves, Stepwise(), validates=True, max_epochs=2, max_steps=11)
    assert names(tmp_path) == ["last.ckpt", "step=7.ckpt"]
    assert step_in(tmp_path / "last.ckpt") == 10
    assert caplog.text.count("there is no value of 'val' that was measured after this step") == 1


def test_a_name_has_no_metric_of_other_weights(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Step 3 has a validation; step 9 has none, is written all the same, and a warning says what the name has."""
    saves = ModelCheckpoint(tmp_path, "{step}-{val:.0f}", save_top_k=-1, every_n_train_steps=3)
    run(saves, Stepwise(), validates=True, max_epochs=2, val_check_interval=3, max_steps=9)
    assert names(tmp_path) == ["step=3-val=3.ckpt", "step=6-val=6.ckpt", "step=9-val=nan.ckpt"]
    assert "nan in its place" in caplog.text


def test_two_that_monitor_other_metrics(tmp_path: Path) -> None:
    """One has its metric at the step, the other waits for the validation that follows: also in a resumed run."""

    def both(folder: str) -> list[Any]:
        common: dict[str, Any] = {"mode": "max", "save_top_k": -1, "every_n_train_steps": 3}
        return [
            ModelCheckpoint(tmp_path / folder / "train", "{step}", monitor="train", **common),
            ModelCheckpoint(tmp_path / folder / "val", "{step}", monitor="val", **common),
        ]

    settings: dict[str, Any] = {"max_epochs": 1, "val_check_interval": 3, "enable_checkpointing": True}
    callbacks = both("one")
    quiet(callbacks=callbacks, **settings).fit(Stepwise(), loader(), loader())
    resumed = both("one")
    quiet(callbacks=resumed, **settings).fit(
        Stepwise(), loader(), loader(), ckpt_path=str(tmp_path / "one" / "train" / "step=3.ckpt")
    )
    for found in (callbacks, resumed):
        assert [sorted(map(int, each.best_k_models.values())) for each in found] == [[3, 6], [3, 6]]


@pytest.mark.parametrize("validates", [False, True])
def test_a_metric_that_is_never_logged(validates: bool, tmp_path: Path) -> None:
    """An error at the first checkpoint, with the nearest name and all that were logged."""
    module = Validated() if validates else Scored()
    with pytest.raises(
        ConfigurationError, match=r"monitor='.*sore'\): it has not been logged. Did you mean .*Logged: "
    ):
        run(ModelCheckpoint(tmp_path, monitor="val/sore" if validates else "sore"), module, validates)


def test_a_name_with_a_metric_that_was_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is written as 0, as in Lightning, and a warning says so."""
    run(ModelCheckpoint(tmp_path, "{other}"), max_epochs=1)
    assert names(tmp_path) == ["other=0.ckpt"]
    assert "'other' has not been logged" in caplog.text


def test_the_last_as_a_link(tmp_path: Path) -> None:
    """It is the newest checkpoint: a link to it if it is among the best, otherwise written whole."""

    class Look(Callback):
        found: list[tuple[bool, int]]

        def __init__(self) -> None:
            self.found = []

        def on_train_epoch_start(self, trainer: Trainer, module: Any) -> None:
            if trainer.current_epoch:
                last = tmp_path / "last.ckpt"
                content = trainer.strategy.load_checkpoint(last)
                assert is_committed(last)
                self.found.append((last.is_symlink(), content["progress"]["step"]))

    look = Look()
    checkpoint = ModelCheckpoint(tmp_path, "{epoch}", monitor="score", save_last="link")
    run(checkpoint, callbacks=[checkpoint, look])
    assert look.found == [(True, 7), (True, 14), (False, 21), (True, 28)]
    assert names(tmp_path) == ["epoch=3.ckpt", "last.ckpt"]
    assert latest(tmp_path) == tmp_path / "last.ckpt"


@pytest.mark.parametrize("io", ["torch", "async"])
@pytest.mark.parametrize("counts", [True, False])
def test_two_in_one_directory_do_not_remove_each_others(counts: bool, io: str, tmp_path: Path) -> None:
    """Both give their checkpoints the same names; what one replaces, the other may keep."""
    best = ModelCheckpoint(tmp_path, "{epoch}", monitor="score", save_last=True, enable_version_counter=counts)
    newest = ModelCheckpoint(tmp_path, "{epoch}", save_last=True, enable_version_counter=counts)
    run(best, callbacks=[best, newest], checkpoint_io=io)
    assert is_committed(best.best_model_path)
    assert is_committed(newest.best_model_path)
    assert quiet().strategy.load_checkpoint(best.best_model_path)["progress"]["step"] == 28
    assert quiet().strategy.load_checkpoint(newest.best_model_path)["progress"]["step"] == 35
    lasts = ["last-v1.ckpt", "last.ckpt"] if counts else ["last.ckpt"]
    assert names(tmp_path) == ["epoch=3.ckpt", "epoch=4.ckpt", *lasts]


def test_a_link_that_a_killed_run_has_not_finished(tmp_path: Path) -> None:
    """In a container, the next run may have the same process ID."""
    (tmp_path / f"last.ckpt.{os.getpid()}").symlink_to("gone.ckpt")
    run(ModelCheckpoint(tmp_path, "{epoch}", save_last="link"))
    assert os.readlink(tmp_path / "last.ckpt") == "epoch=4.ckpt"


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the link."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    with pytest.raises(CheckpointError, match=r"link .*last.ckpt to a checkpoint cannot be made: .*save_last=True"):
        run(ModelCheckpoint(tmp_path, "{epoch}", save_last="link"))


def test_two_that_differ_are_restored_each(tmp_path: Path) -> None:
    """By their arguments, not by their position."""

    def both() -> tuple[ModelCheckpoint, ModelCheckpoint]:
        low = ModelCheckpoint(tmp_path, "low-{epoch}", monitor="score")
        return low, ModelCheckpoint(tmp_path, "high-{epoch}", monitor="score", mode="max")

    first = both()
    run(first[0], callbacks=list(first), max_epochs=3)
    low, high = both()
    trainer = quiet(max_epochs=4, callbacks=[high, low], enable_checkpointing=True)
    trainer.fit(Scored(), loader(), ckpt_path="last")
    assert (low.best_model_path, high.best_model_path) == (
        str(tmp_path / "low-epoch=3.ckpt"),
        str(tmp_path / "high-epoch=0.ckpt"),
    )
    assert names(tmp_path) == ["high-epoch=0.ckpt", "low-epoch=3.ckpt"]


def test_a_checkpoint_holds_what_the_others_decide_at_the_same_time(tmp_path: Path) -> None:
    """The one that is written first knows of the one that is written next."""
    first = ModelCheckpoint(tmp_path, "low-{epoch}", monitor="score", save_top_k=-1)
    second = ModelCheckpoint(tmp_path, "high-{epoch}", monitor="score", mode="max")
    run(first, callbacks=[first, second], max_epochs=1)
    content = quiet().strategy.load_checkpoint(tmp_path / "low-epoch=0.ckpt")
    assert content["callbacks"][second.state_key]["best_model_path"] == str(tmp_path / "high-epoch=0.ckpt")


def test_accumulation(tmp_path: Path) -> None:
    """Steps count, not batches; a checkpoint is written once, with no gradients open."""
    checkpoint = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=2)
    run(checkpoint, accumulate_grad_batches=3, max_epochs=2)
    assert names(tmp_path) == ["step=2.ckpt", "step=4.ckpt", "step=6.ckpt"]
    content = quiet().strategy.load_checkpoint(tmp_path / "step=2.ckpt")
    assert (content["progress"]["batch"], content["processes"][0]["is_accumulating"]) == (6, False)


class Alternates(Regression):
    """Steps in every second batch only."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch))
        if batch_idx % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


class Counting(ModelCheckpoint):
    """Notes each batch after which it has written."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.wrote: list[int] = []

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        self.wrote.append(trainer.progress.batch)


def test_a_resumed_run_writes_no_step_again(tmp_path: Path) -> None:
    """A batch without a step, the first after resuming, is no reason to save the step before once more."""
    options: dict[str, Any] = {"filename": "{step}", "save_top_k": -1, "every_n_train_steps": 1}
    whole = Counting(tmp_path, **options)
    run(whole, Alternates(), max_epochs=1)
    assert whole.wrote == [1, 3, 5, 7]
    resumed = Counting(tmp_path, **options)
    trainer = quiet(max_epochs=1, callbacks=resumed, enable_checkpointing=True)
    trainer.fit(Alternates(), loader(), ckpt_path=tmp_path / "step=2.ckpt")
    assert resumed.wrote == [5, 7]


def test_some_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the interval, and after it again; never after each step."""
    now = [0.0]
    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Slow(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            now[0] += 40.0
            return super().training_step(batch, batch_idx)

    checkpoint = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, train_time_interval=timedelta(seconds=100))
    run(checkpoint, Slow(), max_epochs=1)
    assert names(tmp_path) == ["step=3.ckpt", "step=6.ckpt"]


def test_an_exception(tmp_path: Path) -> None:
    """``save_on_exception`` keeps what was reached; the run goes on from there."""

    class Fails(Scored):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.current_epoch == 1 and batch_idx == 3:
                raise ZeroDivisionError
            return super().training_step(batch, batch_idx)

    checkpoint = ModelCheckpoint(tmp_path, save_top_k=0, save_on_exception=True)
    with pytest.raises(ZeroDivisionError):
        run(checkpoint, Fails())
    assert names(tmp_path) == ["epoch=1-step=10.ckpt"]
    trainer = quiet(max_epochs=2)
    trainer.fit(Scored(), loader(), ckpt_path=tmp_path / "epoch=1-step=10.ckpt")
    assert trainer.global_step == 14


def test_what_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With ``verbose``, each decision."""
    name = "torch_hal.callbacks.checkpoint.model_checkpoint"
    caplog.set_level(logging.INFO, logger=name)
    run(ModelCheckpoint(tmp_path, monitor="score", verbose=True), max_epochs=3)
    said = [record for record in caplog.records if record.name == name]
    assert [record.levelname for record in said] == ["INFO"] * 3
    assert "score=4 is not among the best 1" in said[-1].getMessage()


def test_names() -> None:
    """As Lightning documents them."""
    assert ModelCheckpoint(filename="{epoch:03d}").format_checkpoint_name({"epoch": 5}) == "epoch=005.ckpt"
    named = ModelCheckpoint(filename="{epoch}-{val_loss:.2f}")
    metrics = {"epoch": 2, "val_loss": torch.tensor(0.123456)}
    assert named.format_checkpoint_name(metrics) == "epoch=2-val_loss=0.12.ckpt"
    assert named.format_checkpoint_name(metrics, filename="{epoch:d}", ver=3) == "epoch=2-v3.ckpt"
    assert ModelCheckpoint("/a", "{missing:d}").format_checkpoint_name({}) == "/a/missing=0.ckpt"

    class Named(ModelCheckpoint):
        CHECKPOINT_NAME_LAST = "newest-{step}"
        CHECKPOINT_EQUALS_CHAR = "_"
        FILE_EXTENSION = ".pt"

    assert Named().format_checkpoint_name({"epoch": 1, "step": 2}) == "epoch_1-step_2.pt"


def test_without_steps_nothing_is_written(tmp_path: Path) -> None:
    """Nothing is trained, so there is nothing to keep."""
    run(ModelCheckpoint(tmp_path / "x", save_last=True), max_epochs=0)
    assert not (tmp_path / "x").exists()


def test_a_format_that_does_not_fit_the_metric(tmp_path: Path) -> None:
    """An error that names both; which kind of number a metric is, only a run knows."""
    saving = ModelCheckpoint(tmp_path, "{score:d}")
    with pytest.raises(
        ConfigurationError, match=r"filename='{score:d}': cannot write 'score', which is .*'{score:.2f}'"
    ):
        saving.format_checkpoint_name({"score": torch.tensor(0.5)})
    assert Path(saving.format_checkpoint_name({"score": torch.tensor(3)})).name == "score=3.ckpt"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_n_epochs": -1}, "every_n_epochs=-1"),
        ({"every_n_epochs": 1, "every_n_train_steps": 2}, "every_n_train_steps=2, .*give one of them"),
        ({"train_time_interval": 3}, "train_time_interval=3: must be a datetime.timedelta"),
        ({"save_top_k": -2}, "save_top_k=-2"),
        ({"save_top_k": 3}, "save_top_k=3, monitor=None.*monitor='step', mode='max' keeps the newest"),
        ({"mode": "least"}, "mode='least': must be 'min' or 'max'"),
        ({"monitor": 3}, "monitor=3"),
        ({"save_last": "copy"}, "save_last='copy'"),
        ({"filename": "{}"}, "filename='{}': a field has no name"),
        ({"filename": "a/{epoch}"}, "filename='a/{epoch}'.*without directories"),
        ({"filename": "{val/loss}"}, "filename='{val/loss}'.*auto_insert_metric_name=False"),
        ({"filename": "{epoch:q}"}, "filename='{epoch:q}'"),
        ({"filename": "{epoch"}, "filename='{epoch'"),
        ({"filename": ""}, "filename=''"),
        ({"filename": 3}, "filename=3"),
        ({"dirpath": 3}, "dirpath=3: must be a path"),
    ],
)
def test_arguments_that_would_fail_after_the_first_epoch(options: dict[str, Any], message: str) -> None:
    """Refused when they are given."""
    with pytest.raises((ConfigurationError, WrongTypeError), match=message):
        ModelCheckpoint(**options)


@pytest.mark.parametrize("interval", [1.0, 3])
def test_a_metric_of_the_training_epoch_that_steps_wait_for(interval: float, tmp_path: Path) -> None:
    """Due after an epoch's last step, or another, it waits for the epoch's end, with validations in between."""

    class Logs(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("mean", loss, on_step=False, on_epoch=True)
            return loss

    saves = ModelCheckpoint(tmp_path, "{epoch}-{step}", monitor="mean", save_top_k=-1, every_n_train_steps=7)
    trainer = quiet(max_epochs=2, callbacks=saves, val_check_interval=interval, enable_checkpointing=None)
    trainer.fit(Logs(), loader(), loader())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch=0-step=7.ckpt", "epoch=1-step=14.ckpt"]
