"""What the progress bar draws, and what happens without tqdm."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from core import Trainer
from core.callbacks import ProgressBar, TQDMProgressBar
from core.callbacks.display import progress_bar
from core.callbacks.display.progress_bar import draws_bars
from core.errors import ConfigurationError

from .regression import ITEMS, Regression, dataset, loader, quiet


class Shown(Regression):
    """Logs a loss and an error for the bar, and something that is not for it."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("loss", 1000.0 + self.global_step, prog_bar=True)
        self.log("rate", 0.5, prog_bar=True, on_step=True, on_epoch=True)
        self.log("hidden", 7.0)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("error", 0.123456, prog_bar=True)


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The captured stream is taken for one."""
    monkeypatch.setattr(progress_bar, "draws_bars", lambda: True)


def with_bar(refresh_seconds: float = 0.0, **settings: Any) -> Trainer:
    settings["enable_progress_bar"] = None
    return quiet(callbacks=[ProgressBar(refresh_seconds)], **settings)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that are left standing on a terminal."""
    out, err = capsys.readouterr()
    assert out == ""
    screen, row = [""], 0
    for part in re.split("(\r|\n|\x1b\\[A)", err):
        if part == "\n":
            row += 1
            screen += [""] * (row == len(screen))
        elif part == "\x1b[A":
            row -= 1
        elif part not in ("", "\r"):
            screen[row] = part
    return [line.rstrip() for line in screen if line.strip()]


def test_a_line_for_each_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    """The epoch of how many, its batches, and the newest value of what was logged for the bar, four digits each."""
    with_bar(max_epochs=2).fit(Shown(), loader(), loader())
    first, second = lines(capsys)
    for number, line, loss in ((1, first, "1006"), (2, second, "1013")):
        assert line.startswith(f"epoch {number}/2: 100%|")
        assert " 7/7 [" in line
        assert re.search(rf", error=0.1235, loss={loss}, rate_epoch=0.5, rate_step=0.5, memory=[\d.]+ GB\]$", line)


def test_a_terminal_that_says_it_has_no_columns() -> None:
    """It gets a bar of 80 columns, as in a container without a size; one with a size gets a bar of that size."""
    code = """
from core.callbacks.display.progress_bar import Bar
Bar("epoch", 4, 0, True, 0).show(2, {"loss": "0.25"})
"""
    for columns, expected in ((0, 80), (60, 60)):
        parent, child = pty.openpty()
        termios.tcsetwinsize(child, (40, columns))
        subprocess.run([sys.executable, "-c", code], stderr=child, check=True, timeout=60)
        os.close(child)
        drawn = [line for line in os.read(parent, 65536).decode().split("\r") if "2/4" in line]
        os.close(parent)
        assert "epoch:  50%|" in drawn[-1]
        assert "loss=0.25" in drawn[-1]
        assert abs(len(drawn[-1].strip()) - expected) <= 1


def test_step_values_are_shown_on_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    """Between an epoch's start and end, whenever it is time for a refresh."""
    with_bar(max_epochs=1).fit(Shown(), loader())
    err = capsys.readouterr().err
    assert any("/7 [" in part and "loss=100" in part and " 7/7 [" not in part for part in err.split("\r"))


def test_nothing_is_read_between_refreshes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Logged values stay where they are until the bar is drawn."""
    from core.trainer.metrics.stage_metrics import StageMetrics

    read: list[bool] = []
    step_values = StageMetrics.step_values

    def counting(self: Any, prog_bar_only: bool = False) -> Any:
        read.append(prog_bar_only)
        return step_values(self, prog_bar_only)

    monkeypatch.setattr(StageMetrics, "step_values", counting)
    with_bar(refresh_seconds=1e9, max_epochs=1).fit(Shown(), loader())
    assert read.count(True) == 1  # at the end of the epoch
    with_bar(refresh_seconds=0.0, max_epochs=1).fit(Shown(), loader())
    assert read.count(True) == 1 + 7 + 1
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
    """There are lines, unless a bar is asked for: then the error says how to have it."""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    trainer = quiet(max_epochs=2, enable_progress_bar=None)
    trainer.fit(Shown(), loader())
    assert [line.partition(" batches in ")[0] for line in lines(capsys)] == ["epoch 1/2: 7/7", "epoch 2/2: 7/7"]
    assert quiet(enable_progress_bar=False).callbacks == []
    for ask in (lambda: quiet(enable_progress_bar=True), ProgressBar):
        with pytest.raises(
            ConfigurationError,
            match=r"tqdm is not installed.*pip install .torch-hal\[progress\].*enable_progress_bar=False",
        ):
            ask()


def test_two_bars() -> None:
    """They would write over each other."""
    with pytest.raises(ConfigurationError, match=r"'ProgressBar', 'ProgressBar' are 2 progress bars.*Leave one"):
        quiet(callbacks=[ProgressBar(), ProgressBar()], enable_progress_bar=None)


def test_evaluation_has_bars(capsys: pytest.CaptureFixture[str]) -> None:
    """Each stage leaves its own; those of a fit are drawn, and gone at its end."""
    module, trainer = Shown(), with_bar(max_epochs=1, num_sanity_val_steps=2)
    trainer.fit(module, loader(), [loader(), loader()])
    drawn = capsys.readouterr().err
    assert "sanity check: 100%" in drawn
    assert " 4/4 [" in drawn  # two batches of each loader
    assert "validation:  93%" in drawn
    trainer.fit(module, loader(), loader())
    assert [line.partition(":")[0] for line in lines(capsys)] == ["epoch 1/1"]
    trainer.validate(module, [loader(), loader()], verbose=False)
    trainer.test(module, loader(), verbose=False)
    trainer.predict(module, DataLoader(Stream(), batch_size=8))
    validated, tested, predicted = lines(capsys)
    assert validated.startswith("validation: 100%|")
    assert " 14/14 [" in validated
    assert "error/dataloader_idx_0=0.1235, error/dataloader_idx_1=0.1235" in validated
    assert tested.startswith("test: 100%|")
    assert predicted.startswith("prediction: 7it [")


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One for each epoch and stage, and one after each minute; no control characters."""
    monkeypatch.setattr(progress_bar, "draws_bars", draws_bars)
    trainer = with_bar(max_epochs=2, num_sanity_val_steps=2)
    trainer.fit(Shown(), loader(), loader())
    trainer.test(Shown(), loader())
    shown = ", error=0.1235, loss={}, rate_epoch=0.5, rate_step=0.5"
    pace = re.compile(r"(?<=0:00:00) \(([\d.e+]+)/s\)")
    memory = re.compile(r", memory=([\d.]+) GB")
    said = capsys.readouterr().err
    assert len(pace.findall(said)) == 3
    assert all(float(rate) > 7 for rate in pace.findall(said)), "seven batches took less than a second"
    assert [0.05 < float(count) < 50 for count in memory.findall(said)] == [True, True]
    assert memory.sub("", pace.sub("", said)).split("\n") == [
        "epoch 1/2: 7/7 batches in 0:00:00" + shown.format(1006),
        "epoch 2/2: 7/7 batches in 0:00:00" + shown.format(1013),
        "test: 7/7 batches in 0:00:00",
        "",
    ]
    monkeypatch.setattr(progress_bar, "LINE_SECONDS", 0.0)
    with_bar(max_epochs=1).fit(Regression(), loader())
    said = capsys.readouterr().err
    assert re.search(r"^epoch 1/1: 1/7 batches in 0:00:00 \([\d.e+]+/s, 0:00:00 left\), memory=", said)
    counts = [line.partition(" batches")[0] for line in said.split("\n")]
    assert counts == [*(f"epoch 1/1: {number}/7" for number in range(1, 8)), "epoch 1/1: 7/7", ""]


def test_a_resumed_epoch_begins_where_it_was_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its bar shows the batches that were done before."""
    first = quiet(max_epochs=1, max_steps=3)
    first.fit(Regression(), loader())
    first.save_checkpoint(tmp_path / "x.ckpt")
    with_bar(max_epochs=1).fit(Regression(), loader(), ckpt_path=tmp_path / "x.ckpt")
    err = capsys.readouterr().err
    assert "| 3/7 [" in err
    assert "| 2/7 [" not in err
    assert "| 7/7 [" in err


def test_tqdm_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """Lightning's arguments: refreshes by batches, one bar for all epochs unless ``leave``."""

    def fit(bar: TQDMProgressBar) -> None:
        quiet(max_epochs=2, callbacks=bar, enable_progress_bar=True).fit(Shown(), loader())

    fit(TQDMProgressBar(refresh_rate=3))
    assert {int(number) for number in re.findall(r" (\d)/7 \[", capsys.readouterr().err)} == {0, 3, 6, 7}
    fit(TQDMProgressBar())
    (last,) = lines(capsys)
    assert last.startswith("epoch 2/2: 100%|")
    assert "loss=1013" in last
    fit(TQDMProgressBar(leave=True))
    assert len(lines(capsys)) == 2
    fit(TQDMProgressBar(process_position=1))
    assert "\n\r" in capsys.readouterr().err
    fit(TQDMProgressBar(refresh_rate=0))
    assert lines(capsys) == []
    with pytest.raises(ConfigurationError, match="refresh_rate=-1: must be an integer"):
        TQDMProgressBar(refresh_rate=-1)
    with pytest.raises(ConfigurationError, match="process_position=-1: must be an integer"):
        TQDMProgressBar(process_position=-1)
