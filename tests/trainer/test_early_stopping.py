"""When EarlyStopping ends a fit, against a count by hand."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from core.callbacks import EarlyStopping, ModelCheckpoint
from core.callbacks.early_stopping import EarlyStoppingReason
from core.errors import ConfigurationError, WrongTypeError

from .regression import Regression, loader, quiet


class Scored(Regression):
    def __init__(self, scores: list[float]) -> None:
        super().__init__()
        self.scores = scores

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("score", self.scores[self.current_epoch])


@pytest.mark.parametrize(
    ("scores", "options", "epochs", "reason"),
    [
        ([5, 4, 3, 2, 1], {}, 5, "NOT_STOPPED"),
        ([5, 4, 4, 4, 4, 4], {}, 5, "PATIENCE_EXHAUSTED"),
        ([5, 4, 4, 3, 3, 3], {"patience": 2}, 6, "PATIENCE_EXHAUSTED"),
        ([5, 6, 7], {"patience": 1}, 2, "PATIENCE_EXHAUSTED"),
        ([5, 6, 7, 7], {"patience": 1, "mode": "max"}, 4, "PATIENCE_EXHAUSTED"),
        ([5, 4.5, 4], {"patience": 1, "min_delta": 0.6}, 2, "PATIENCE_EXHAUSTED"),
        ([5, 4.5, 4], {"patience": 1, "min_delta": 0.4}, 3, "NOT_STOPPED"),
        ([5, math.nan, 4], {}, 2, "NON_FINITE_METRIC"),
        ([5, math.nan, 4, 3], {"check_finite": False}, 4, "NOT_STOPPED"),
        ([5, 1, 4], {"stopping_threshold": 2}, 2, "STOPPING_THRESHOLD"),
        ([5, 11, 4], {"divergence_threshold": 10}, 2, "DIVERGENCE_THRESHOLD"),
        ([1, 0.5, 4], {"divergence_threshold": 0.7, "mode": "max"}, 2, "DIVERGENCE_THRESHOLD"),
    ],
)
def test_how_many_epochs(scores: list[float], options: dict[str, Any], epochs: int, reason: str) -> None:
    """And why it has ended."""
    stopping = EarlyStopping("score", **options)
    trainer = quiet(max_epochs=len(scores), callbacks=stopping)
    trainer.fit(Scored(scores), loader(), loader())
    assert trainer.current_epoch == epochs
    assert stopping.stopping_reason is EarlyStoppingReason[reason]
    assert (stopping.stopping_reason_message is None) == (reason == "NOT_STOPPED")
    assert stopping.stopped_epoch == (0 if reason == "NOT_STOPPED" else epochs - 1)
    assert trainer.early_stopping_callback is stopping


@pytest.mark.parametrize(
    ("scores", "options", "least", "epochs"),
    [
        ([5, 6, 6, 6, 1, 0.9, 0.8, 0.7], {"patience": 2}, {"min_epochs": 6}, 8),
        ([5, 6, 6, 6, 6, 6, 6, 6], {"patience": 2}, {"min_epochs": 6}, 6),
        ([5, 6, 6, 4, 4, 4, 4, 4], {"patience": 2}, {"min_steps": 28}, 6),
        ([5, math.nan, 4, 3, 2, 1], {}, {"min_epochs": 4}, 6),
        ([5, 11, 4, 3, 2, 1], {"divergence_threshold": 10}, {"min_epochs": 4}, 6),
        ([5, 1, 4, 4, 4, 4], {"stopping_threshold": 2, "patience": 9}, {"min_epochs": 4}, 6),
    ],
)
def test_only_a_check_after_the_least_length_ends_the_fit(
    scores: list[float], options: dict[str, Any], least: dict[str, int], epochs: int
) -> None:
    """A metric that had been bad before ``min_epochs`` or ``min_steps`` and has recovered goes on."""
    stopping = EarlyStopping("score", **options)
    trainer = quiet(max_epochs=len(scores), callbacks=stopping, **least)
    trainer.fit(Scored(scores), loader(), loader())
    assert trainer.current_epoch == epochs
    assert (stopping.stopping_reason is EarlyStoppingReason.NOT_STOPPED) == (epochs == len(scores))


def test_resumed_before_the_least_length(tmp_path: Path) -> None:
    """A run that was broken off before ``min_epochs`` ends where the uninterrupted one does."""
    scores: list[float] = [5, 6, 6, 6, 1, 0.9, 0.9, 0.9]
    ended = []
    for ckpt_path in (None, *(str(tmp_path / f"epoch={epoch}.ckpt") for epoch in range(5))):
        saving = [] if ckpt_path else [ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)]
        stopping = EarlyStopping("score", patience=2)
        trainer = quiet(max_epochs=8, min_epochs=5, callbacks=[stopping, *saving], enable_checkpointing=bool(saving))
        trainer.fit(Scored(scores), loader(), loader(), ckpt_path=ckpt_path)
        ended.append((trainer.current_epoch, stopping.wait_count, round(float(stopping.best_score), 4)))
    assert ended == [(8, 2, 0.9)] * 6


def test_a_resumed_run_goes_on_waiting(tmp_path: Path) -> None:
    """It ends where the uninterrupted one does."""
    scores: list[float] = [5, 4, 4, 4, 4, 4]
    for epochs, ckpt_path in ((3, None), (6, "last")):
        stopping = EarlyStopping("score", patience=3)
        saving = ModelCheckpoint(tmp_path)
        trainer = quiet(max_epochs=epochs, callbacks=[stopping, saving], enable_checkpointing=True)
        trainer.fit(Scored(scores), loader(), loader(), ckpt_path=ckpt_path)
    assert (trainer.current_epoch, stopping.wait_count, float(stopping.best_score)) == (5, 3, 4.0)


def test_a_second_fit_begins_to_wait_again() -> None:
    """A fit without a checkpoint is a new run."""
    stopping = EarlyStopping("score", patience=1)
    trainer = quiet(max_epochs=4, callbacks=stopping)
    for _ in range(2):
        trainer.fit(Scored([5, 4, 4, 4]), loader(), loader())
        assert trainer.current_epoch == 3


def test_validation_in_every_other_epoch() -> None:
    """Counts checks, not epochs."""
    trainer = quiet(max_epochs=10, check_val_every_n_epoch=2, callbacks=EarlyStopping("score", patience=2))
    trainer.fit(Scored([4.0] * 10), loader(), loader())
    assert trainer.current_epoch == 6


def test_a_metric_that_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An error with the names; with ``strict=False`` the check is skipped."""
    with pytest.raises(ConfigurationError, match=r"monitor='scor'\): it has not been logged. Did you mean 'score'"):
        quiet(max_epochs=2, callbacks=EarlyStopping("scor")).fit(Scored([1, 2]), loader(), loader())
    lenient = EarlyStopping("scor", strict=False, verbose=True)
    trainer = quiet(max_epochs=2, callbacks=lenient)
    trainer.fit(Scored([1, 2]), loader(), loader())
    assert trainer.current_epoch == 2
    assert "has not been logged" in caplog.text


def test_what_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """With ``verbose``: improvements, and the end."""
    caplog.set_level(logging.INFO)
    quiet(max_epochs=9, callbacks=EarlyStopping("score", verbose=True, patience=1)).fit(
        Scored([5, 4, 4]), loader(), loader()
    )
    assert "score has improved from 5.000 to 4.000" in caplog.text
    assert "score has not improved in 1 checks; the best value is 4.000" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "auto"}, "mode='auto'"),
        ({"patience": -1}, "patience=-1"),
        ({"min_delta": -1}, "min_delta=-1"),
        ({"monitor": None}, "monitor=None: must be the name"),
    ],
)
def test_arguments(options: dict[str, Any], message: str) -> None:
    """Checked when they are given."""
    with pytest.raises((ConfigurationError, WrongTypeError), match=message):
        EarlyStopping(**{"monitor": "score", **options})


def test_the_state_of_a_lightning_before_there_were_reasons() -> None:
    """It has all but the reason. The patience is this run's."""
    stopping = EarlyStopping("score")
    state = {"wait_count": 2, "stopped_epoch": 0, "best_score": torch.tensor(0.5), "patience": 4}
    stopping.load_state_dict(state)
    assert (stopping.wait_count, float(stopping.best_score), stopping.patience) == (2, 0.5, 3)
    assert (stopping.stopping_reason.value, stopping.stopping_reason_message) == (0, None)


def test_a_resumed_run_may_have_more_patience(tmp_path: Path) -> None:
    """It goes on counting from where it was."""
    quiet(
        max_epochs=9,
        callbacks=[EarlyStopping("score", patience=2), ModelCheckpoint(tmp_path, "end")],
        enable_checkpointing=True,
    ).fit(Scored([5, 6, 6, 6, 6, 6, 6, 6, 6]), loader(), loader())
    stopping = EarlyStopping("score", patience=5)
    trainer = quiet(max_epochs=9, callbacks=stopping)
    trainer.fit(Scored([5, 6, 6, 6, 6, 6, 6, 6, 6]), loader(), loader(), ckpt_path=tmp_path / "end.ckpt")
    assert (trainer.current_epoch, stopping.wait_count) == (6, 5)


@pytest.mark.parametrize("interval", [1.0, 0.5])
@pytest.mark.parametrize(
    ("scores", "options", "more"),
    [
        ([5, 6, 6, 4, 3, 2, 1, 1], {"patience": 2}, {"patience": 99}),
        ([5, 1, 6, 6, 4, 3, 2, 1], {"stopping_threshold": 2}, {"stopping_threshold": 0.5, "patience": 99}),
        ([5, 9, 4, 4, 4, 3, 2, 1], {"divergence_threshold": 8}, {"patience": 99}),
        ([5, float("nan"), 4, 4, 4, 3, 2, 1], {}, {"check_finite": False, "patience": 99}),
    ],
)
def test_a_fit_that_is_resumed_after_its_end(
    scores: list[float],
    options: dict[str, Any],
    more: dict[str, Any],
    interval: float,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It says so and trains nothing, unless the arguments of the new run let it go on."""

    def fit(ckpt_path: Path | None, **options: Any) -> tuple[int, EarlyStopping]:
        stopping = EarlyStopping("score", **options)
        callbacks = [stopping] if ckpt_path else [stopping, ModelCheckpoint(tmp_path, "end")]
        trainer = quiet(
            max_epochs=8, val_check_interval=interval, callbacks=callbacks, enable_checkpointing=ckpt_path is None
        )
        trainer.fit(Scored(scores), loader(), loader(), ckpt_path=ckpt_path)
        return trainer.global_step, stopping

    end = tmp_path / "end.ckpt"
    steps, stopped = fit(None, **options)
    assert "had ended" not in caplog.text
    again, resumed = fit(end, **options)
    assert (again, resumed.stopping_reason) == (steps, stopped.stopping_reason)
    assert "EarlyStopping had ended the fit that the checkpoint is of" in caplog.text
    further, resumed = fit(end, **more)
    assert further > steps
    assert resumed.stopping_reason.name == "NOT_STOPPED"


def test_an_epoch_without_validation_counts_nothing() -> None:
    """Every second epoch validates, and each value is better than the one before: the fit has all of its epochs."""
    stopping = EarlyStopping("score", patience=1, strict=False, check_on_train_epoch_end=True)
    trainer = quiet(max_epochs=6, check_val_every_n_epoch=2, callbacks=stopping)
    trainer.fit(Scored([6, 5, 4, 3, 2, 1]), loader(), loader())
    assert (trainer.current_epoch, stopping.wait_count, float(stopping.best_score)) == (6, 0, 1.0)


@pytest.mark.parametrize(("interval", "steps"), [(1, 4), (2, 9), (1.0, 28)])
def test_each_validation_is_judged(interval: float, steps: int, tmp_path: Path) -> None:
    """The first of four is the best; each has its checkpoint. 1 is after each batch, 1.0 after each epoch of seven."""

    class Worse(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("score", float(self.global_step))

    saves = ModelCheckpoint(tmp_path, monitor="score", save_top_k=-1)
    callbacks = [EarlyStopping("score", patience=3), saves]
    trainer = quiet(max_epochs=9, callbacks=callbacks, val_check_interval=interval, enable_checkpointing=True)
    trainer.fit(Worse(), loader(), loader())
    assert trainer.global_step == steps
    assert len(saves.best_k_models) == 4


@pytest.mark.parametrize(
    "settings",
    [{"check_val_every_n_epoch": 2}, {"val_check_interval": 10, "check_val_every_n_epoch": None}, {}],
)
def test_a_metric_of_training_is_judged_in_each_epoch(settings: dict[str, Any]) -> None:
    """However often the fit validates, ``patience`` counts the values of its epochs, of seven batches."""

    class Logs(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("score", 1.0 if self.current_epoch else 2.0, on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> None: ...

    trainer = quiet(max_epochs=9, callbacks=EarlyStopping("score", patience=3), **settings)
    trainer.fit(Logs(), loader(), loader())
    assert trainer.current_epoch == 5
    within = quiet(max_epochs=9, callbacks=EarlyStopping("score", patience=3), val_check_interval=3)
    with pytest.raises(ConfigurationError, match=r"after each validation, .*check_on_train_epoch_end=True, or"):
        within.fit(Logs(), loader(), loader())
    stopping = EarlyStopping("score", patience=3, check_on_train_epoch_end=True)
    within = quiet(max_epochs=9, callbacks=stopping, val_check_interval=3)
    within.fit(Logs(), loader(), loader())
    assert within.current_epoch == 5
