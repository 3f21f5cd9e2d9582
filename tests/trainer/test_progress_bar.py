"""What the progress bar draws, and what happens without tqdm."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from core import Trainer
from core.callbacks import ProgressBar
from core.errors import ConfigurationError

from .regression import ITEMS, Regression, dataset, loader, quiet


class Shown(Regression):
    """Logs a loss and an error for the bar, and something that is not for it."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("loss", 1000.0 + self.global_step, prog_bar=True)
        self.log("rate", 0.5, prog_bar=True, on_step=True, on_epoch=True)
        self.log("hidden", 7.0)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("error", 0.123456, prog_bar=True)


def with_bar(refresh_seconds: float = 0.0, **settings: Any) -> Trainer:
    settings["enable_progress_bar"] = None
    return quiet(callbacks=[ProgressBar(refresh_seconds)], **settings)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that are left standing."""
    out, err = capsys.readouterr()
    assert out == ""
    return [line.rpartition("\r")[2] for line in err.split("\n")[:-1]]


def test_a_line_for_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    """The epoch of how many, its batches, and the newest value of what was logged for the bar, four digits each."""
    with_bar(max_epochs=2).fit(Shown(), loader(), loader())
    first, second = lines(capsys)
    for number, line, loss in ((1, first, "1006"), (2, second, "1013")):
        assert line.startswith(f"epoch {number}/2: 100%|")
        assert " 7/7 [" in line
        assert line.endswith(f", error=0.1235, loss={loss}, rate_epoch=0.5, rate_step=0.5]")


def test_step_values_are_shown_on_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    """Between an epoch's start and end, whenever it is time for a refresh."""
    with_bar(max_epochs=1).fit(Shown(), loader())
    err = capsys.readouterr().err
    assert any("/7 [" in part and "loss=100" in part and " 7/7 [" not in part for part in err.split("\r"))


def test_nothing_is_read_between_refreshes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Logged values stay where they are until the bar is drawn."""
    from core.trainer.metrics import StageMetrics

    read: list[bool] = []
    step_values = StageMetrics.step_values

    def counting(self: Any, prog_bar_only: bool = False) -> Any:
        read.append(prog_bar_only)
        return step_values(self, prog_bar_only)

    monkeypatch.setattr(StageMetrics, "step_values", counting)
    with_bar(refresh_seconds=1e9, max_epochs=1).fit(Shown(), loader())
    assert True not in read
    with_bar(refresh_seconds=0.0, max_epochs=1).fit(Shown(), loader())
    assert read.count(True) == 7
    assert len(lines(capsys)) == 2


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        rows = dataset()
        return (rows[index] for index in range(ITEMS))


def test_totals(capsys: pytest.CaptureFixture[str]) -> None:
    """A limit counts; a stream has no total, nor has a fit by steps a number of epochs."""
    with_bar(max_epochs=1, limit_train_batches=3).fit(Regression(), loader())
    with_bar(max_epochs=1).fit(Regression(), DataLoader(Stream(), batch_size=8))
    with_bar(max_steps=8).fit(Regression(), loader())
    limited, stream, *by_steps = lines(capsys)
    assert " 3/3 [" in limited
    assert stream.startswith("epoch 1/1: 7it [")
    assert [line.partition(":")[0] for line in by_steps] == ["epoch 1", "epoch 2"]
    assert " 1/7 [" in by_steps[1]


def test_an_error_leaves_the_line_to_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """The bar is closed, and a new one is drawn by the next fit."""

    class Fails(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 3:
                raise ZeroDivisionError
            return super().training_step(batch, batch_idx)

    trainer = with_bar(max_epochs=1)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(Fails(), loader())
    assert capsys.readouterr().err.endswith("\n")
    trainer.fit(Regression(), loader())
    assert " 7/7 [" in lines(capsys)[0]


def test_one_process_of_several_draws(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Process 0 alone."""
    monkeypatch.setattr(Trainer, "is_global_zero", property(lambda self: False))
    with_bar(max_epochs=1).fit(Shown(), loader(), loader())
    assert lines(capsys) == []


def test_without_tqdm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no bar, unless one is asked for: then the error says how to have it."""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    trainer = quiet(max_epochs=1, enable_progress_bar=None)
    assert trainer.callbacks == []
    trainer.fit(Shown(), loader())
    assert lines(capsys) == []
    for ask in (lambda: quiet(enable_progress_bar=True), ProgressBar):
        with pytest.raises(
            ConfigurationError,
            match=r"tqdm is not installed.*pip install .torch-hal\[progress\].*enable_progress_bar=False",
        ):
            ask()
