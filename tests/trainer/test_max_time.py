"""Trainer(max_time=...), and a Timer without time or for its times only."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from core import Callback
from core.callbacks import Timer
from core.errors import ConfigurationError
from core.trainer.trainer_state import RunningStage

from .regression import Regression, loader, quiet


@pytest.mark.parametrize(
    "max_time", ["00:00:00:01", timedelta(seconds=1), {"seconds": 1}], ids=["text", "timedelta", "dict"]
)
def test_training_ends_when_the_time_is_over(max_time: Any) -> None:
    """Without any other limit; the running optimizer step is finished."""

    class Slow(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            time.sleep(0.4)

    trainer = quiet(max_time=max_time, callbacks=[Slow()], limit_train_batches=2)
    assert trainer.max_epochs == -1
    trainer.fit(Regression(), loader())
    assert trainer.global_step == 3  # 0.4, 0.8, 1.2 seconds


def test_the_number_of_epochs_holds_too() -> None:
    """Whatever is reached first ends training."""
    trainer = quiet(max_time="01:00:00:00", max_epochs=2)
    trainer.fit(Regression(), loader())
    assert trainer.current_epoch == 2
    (timer,) = [callback for callback in trainer.callbacks if isinstance(callback, Timer)]
    assert (timer.time_remaining() or 0) == pytest.approx(86400, abs=60)


@pytest.mark.parametrize("max_time", [60, "1:00", {"fortnights": 1}, {"seconds": -1}, timedelta(days=-1)])
def test_what_is_no_duration(max_time: Any) -> None:
    """It is named."""
    with pytest.raises(ConfigurationError, match=r"max_time[=:]"):
        quiet(max_time=max_time)


def test_a_timer_and_max_time() -> None:
    """One of them would have no effect."""
    with pytest.raises(ConfigurationError, match="max_time='00:01:00:00', but there is a Timer"):
        quiet(max_time="00:01:00:00", callbacks=[Timer()])


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_timer_without_time_ends_the_fit_before_its_first_step(interval: str, tmp_path: Path) -> None:
    """Whether it was given none, or the resumed run has taken it all; the least epochs are trained all the same."""
    module = Regression()
    before = [parameter.clone() for parameter in module.parameters()]
    trainer = quiet(max_epochs=2, callbacks=Timer(timedelta(0), interval))
    trainer.fit(module, loader())
    assert (trainer.global_step, trainer.current_epoch) == (0, 0)
    assert all(torch.equal(*pair) for pair in zip(before, module.parameters(), strict=True))

    trainer = quiet(max_epochs=1, callbacks=Timer("01:00:00:00", interval))
    trainer.fit(module, loader())
    trainer.save_checkpoint(tmp_path / "c")
    trainer = quiet(max_epochs=4, callbacks=Timer({"microseconds": 1}, interval))
    trainer.fit(module, loader(), ckpt_path=tmp_path / "c")
    assert (trainer.global_step, trainer.current_epoch) == (7, 1)

    trainer = quiet(max_epochs=2, min_epochs=1, callbacks=Timer(timedelta(0), interval))
    trainer.fit(module, loader())
    assert (trainer.global_step, trainer.current_epoch) == (7, 1)


def test_a_timer_has_the_times_of_each_stage() -> None:
    """By name, as text and as an enumeration."""
    timer = Timer()
    trainer = quiet(max_epochs=2, callbacks=timer, num_sanity_val_steps=1)
    assert [timer.start_time(stage) for stage in RunningStage] == [None] * len(RunningStage)
    assert [timer.time_elapsed(stage) for stage in RunningStage] == [0.0] * len(RunningStage)
    module = Regression()
    trainer.fit(module, loader(), loader())
    within = timer.time_elapsed("train")
    trainer.test(module, loader())
    trainer.predict(module, loader())
    for stage in RunningStage:
        start, end = timer.start_time(stage), timer.end_time(stage)
        assert start is not None, stage
        assert end is not None, stage
        assert 0 < end - start <= timer.time_elapsed(stage)
    assert timer.time_elapsed("train") == within  # it has ended
    for ask in (timer.start_time, timer.end_time, timer.time_elapsed, timer.time_remaining):
        with pytest.raises(ConfigurationError, match=r"stage='val': .*Valid: 'train', 'validate'"):
            ask("val")
