"""What a Trainer says it is doing: ``trainer.state``, ``received_sigterm``, and the callbacks it finds."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest

from core import Callback, Trainer
from core.callbacks import EarlyStopping, ProgressBar
from core.strategies.launchers.exit_codes import EndedBySignal
from core.trainer.trainer_state import RunningStage, TrainerFn, TrainerStatus

from .regression import Regression, loader, quiet


class Notes(Callback):
    """The state in hooks of each stage."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def _note(self, at: str, trainer: Trainer) -> None:
        state = trainer.state
        self.seen[at] = (state.fn, state.stage, state.status, state.finished, state.stopped)

    def setup(self, trainer: Trainer, module: Any, stage: str) -> None:
        self._note(f"setup {stage}", trainer)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self._note("train", trainer)

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        self._note("check" if trainer.sanity_checking else "validation", trainer)

    def on_test_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self._note("test", trainer)

    def on_predict_end(self, trainer: Trainer, module: Any) -> None:
        self._note("predict", trainer)

    def on_exception(self, trainer: Trainer, module: Any, error: BaseException) -> None:
        self._note("exception", trainer)


def test_the_state_in_each_stage() -> None:
    """The function that runs, what it is doing, and how it has ended; as in Lightning."""
    notes = Notes()
    trainer = quiet(callbacks=notes, max_epochs=1, num_sanity_val_steps=1)
    assert (trainer.state.fn, trainer.state.stage, trainer.state.status) == (None, None, "initializing")
    trainer.fit(Regression(), loader(), loader())
    state = trainer.state
    assert (state.fn, state.stage, state.status, state.finished, state.stopped) == (
        TrainerFn.FITTING,
        None,
        TrainerStatus.FINISHED,
        True,
        True,
    )
    trainer.test(Regression(), loader())
    trainer.predict(Regression(), loader())
    assert trainer.state.fn == "predict"
    running = (TrainerStatus.RUNNING, False, False)
    assert notes.seen["train"] == ("fit", RunningStage.TRAINING, *running)
    assert notes.seen["check"] == ("fit", RunningStage.SANITY_CHECKING, *running)
    assert notes.seen["validation"] == ("fit", RunningStage.VALIDATING, *running)
    assert notes.seen["test"] == ("test", RunningStage.TESTING, *running)
    assert notes.seen["predict"] == ("predict", RunningStage.PREDICTING, *running)
    assert RunningStage.SANITY_CHECKING.evaluating
    assert not RunningStage.TRAINING.evaluating
    assert (RunningStage.VALIDATING.dataloader_prefix, RunningStage.TESTING.dataloader_prefix) == ("val", "test")


def test_the_state_after_an_error() -> None:
    """Also in ``on_exception``; the next run is another one."""

    class Fails(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise ValueError("on purpose")

    notes = Notes()
    trainer = quiet(callbacks=notes, max_epochs=1)
    with pytest.raises(ValueError, match="on purpose"):
        trainer.fit(Fails(), loader())
    assert notes.seen["exception"][2] == "interrupted"
    assert (trainer.state.status, trainer.state.stage, trainer.state.stopped) == ("interrupted", None, True)
    assert trainer.interrupted
    trainer.fit(Regression(), loader())
    assert trainer.state.finished


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_sigterm_is_known() -> None:
    """From the signal on, and after the run, until the next."""

    class Kills(Callback):
        def __init__(self) -> None:
            self.seen: list[bool] = []

        def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
            self.seen.append(trainer.received_sigterm)
            if batch_idx == 2:
                os.kill(os.getpid(), signal.SIGTERM)

        def on_exception(self, trainer: Trainer, module: Any, error: BaseException) -> None:
            self.seen.append(trainer.received_sigterm)

    kills = Kills()
    trainer = quiet(callbacks=kills, max_epochs=1000)
    with pytest.raises(EndedBySignal):
        trainer.fit(Regression(), loader())
    assert kills.seen[:3] == [False] * 3
    assert kills.seen[-1]
    assert trainer.received_sigterm
    trainer.callbacks = []
    trainer.fast_dev_run = 0
    trainer.max_epochs = 1
    trainer.fit(Regression(), loader())
    assert not trainer.received_sigterm


def test_callbacks_by_kind() -> None:
    """The first of each kind, or ``None``."""
    bar, first, second = ProgressBar(), EarlyStopping("a"), EarlyStopping("b")
    trainer = quiet(callbacks=[first, bar, second], enable_progress_bar=True)
    assert trainer.progress_bar_callback is bar
    assert (trainer.early_stopping_callback, trainer.early_stopping_callbacks) == (first, [first, second])
    assert quiet().progress_bar_callback is None
