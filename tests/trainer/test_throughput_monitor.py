"""What is logged of a run's throughput, by a clock that the steps advance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.callbacks import ModelCheckpoint, ThroughputMonitor, monitors
from core.errors import ConfigurationError, WrongTypeError

from .regression import Regression, loader, quiet


class Rows:
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, {name: value for name, value in metrics.items() if "/" in name}))

    def of(self, stage: str) -> list[tuple[int, dict[str, float]]]:
        return [row for row in self.rows if any(name.startswith(f"{stage}/") for name in row[1])]


class Clock:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(monitors, "time", clock)
    return clock


class Timed(Regression):
    """A step of training takes half a second, the very first ten; one of validation five."""

    flops_per_batch = 1000

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.clock.now += 0.5 if self.global_step else 10
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.clock.now += 5

    test_step = validation_step


def samples(batch: Any) -> int:
    return len(batch[0])


def test_rates_and_totals(clock: Clock) -> None:
    """Two batches of eight in a second; neither the first batch nor validation slows them, the last is of two."""
    rows = Rows()
    monitor = ThroughputMonitor(samples, length_fn=lambda batch: 3 * samples(batch), window_size=2)
    trainer = quiet(max_epochs=2, callbacks=monitor, logger=rows, log_every_n_steps=3, num_sanity_val_steps=1)
    module = Timed(clock)
    trainer.fit(module, loader(), loader())
    (at, first), *_, last = rows.of("train")
    assert at == 2
    assert first == {
        "train/device/batches_per_sec": 2.0,
        "train/device/samples_per_sec": 16.0,
        "train/device/items_per_sec": 48.0,
        "train/device/flops_per_sec": 2000.0,
        "train/time": 11.0,
        "train/batches": 3.0,
        "train/samples": 24.0,
        "train/lengths": 72.0,
    }
    # steps 10 to 12, all of the second epoch, after the first one's validation
    assert last[0] == 11
    assert last[1]["train/time"] == 10 + 11 * 0.5
    assert last[1]["train/samples"] == 50 + 5 * 8
    assert [row[1]["train/device/samples_per_sec"] for row in rows.of("train")] == [16.0, 16.0, 12.0, 16.0]
    validated = rows.of("validate")
    assert [step for step, _ in validated] == [2, 5, 2, 5]
    assert validated[1][1]["validate/device/batches_per_sec"] == pytest.approx(0.2)
    trainer.test(module, loader())
    assert rows.of("test")[-1][1]["test/samples"] == 48.0


def test_wrong_arguments() -> None:
    """Are named; and without a logger there would be no effect."""
    with pytest.raises(WrongTypeError, match="batch_size_fn=8: must be a function"):
        ThroughputMonitor(8)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="window_size=0: must be an integer ≥ 1"):
        ThroughputMonitor(samples, window_size=0)
    with pytest.raises(ConfigurationError, match="ThroughputMonitor: the trainer has no logger"):
        quiet(max_epochs=1, callbacks=ThroughputMonitor(samples)).fit(Regression(), loader())


def test_a_resumed_run_continues_the_totals(clock: Clock, tmp_path: Path) -> None:
    """The rates count the batches after resuming only; the time between the runs is left out."""
    rows, resumed = Rows(), Rows()
    keeps = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    options: dict[str, Any] = {"max_epochs": 2, "log_every_n_steps": 3}
    quiet(callbacks=[ThroughputMonitor(samples), keeps], logger=rows, **{**options, "enable_checkpointing": True}).fit(
        Timed(clock), loader()
    )
    clock.now += 1000
    quiet(callbacks=ThroughputMonitor(samples), logger=resumed, **options).fit(
        Timed(clock), loader(), ckpt_path=tmp_path / "step=4.ckpt"
    )
    totals = [
        [
            (step, {name: row[f"train/{name}"] for name in ("time", "batches", "samples")})
            for step, row in found.of("train")
        ]
        for found in (rows, resumed)
    ]
    assert [step for step, _ in totals[1]] == [5, 8, 11]
    assert totals[1] == totals[0][1:]
    assert resumed.of("train")[0][1]["train/device/batches_per_sec"] == 2.0
