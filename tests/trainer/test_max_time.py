"""Trainer(max_time=...)."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from core import Callback
from core.callbacks import Timer
from core.errors import ConfigurationError

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
