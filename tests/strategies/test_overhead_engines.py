"""benchmarks/overhead_engines.py: its interval is as sure as it says, and rows not shown below the bar run again."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("overhead_engines")


@pytest.mark.parametrize("heavy_tails", [False, True])
def test_the_shift_of_two_samples_is_within_its_interval(script: Any, heavy_tails: bool) -> None:
    """In about 95 of 100 pairs of samples, whatever their distribution; a shift of more is outside."""
    generator = torch.Generator().manual_seed(0)

    def sample() -> Tensor:
        drawn = torch.randn(2, 28, generator=generator, dtype=torch.float64)
        return drawn[0] / drawn[1].abs() if heavy_tails else drawn[0]

    found = [script.shift(sample() + 7, sample()) for _ in range(1000)]
    assert 0.93 < sum(low <= 7 <= high for low, _, high in found) / len(found) < 0.97
    assert sum(low <= 9 <= high for low, _, high in found) / len(found) < 0.5
    assert all(low <= estimate <= high for low, estimate, high in found)


@pytest.mark.parametrize(
    ("overhead", "least", "most", "code"), [(5.0, 2, 2, 0), (30.0, 14, 14, 1), (16.0, 3, 13, 0), (20.0, 14, 14, 1)]
)
def test_rows_are_measured_until_they_are_shown_below_the_bar(
    script: Any, monkeypatch: pytest.MonkeyPatch, overhead: float, least: int, most: int, code: int
) -> None:
    """What is clearly below it is not run again; one that is about it or above it is, as often as may be."""
    generator = torch.Generator().manual_seed(1)
    runs: list[str] = []

    def run(row: Any, arguments: Any) -> Tensor:
        runs.append(row.front_end)
        shape = (arguments.epochs - 2, 1, len(script.CLOCKS))
        front_end = torch.randn(*shape, generator=generator, dtype=torch.float64) * 10
        front_end += 0.0 if row.front_end == script.CONTROL else overhead
        return torch.cat([front_end, torch.zeros_like(front_end)], dim=1)

    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script.signal, "signal", lambda *_: None)
    words = ["--check", "--only", "ddp_sharded", "--processes", "2", "--rounds", "2", "--more", "12"]
    monkeypatch.setattr(sys, "argv", ["overhead_engines.py", *words])
    assert script.main() == code
    assert least <= runs.count("Runtime") <= most
    assert runs.count(script.CONTROL) == runs.count("Runtime")
    assert runs.count("Trainer") == 2, "it has no bar"


def test_the_clock_outside_stands_still_in_an_engines_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loop does with the engine is not in it, once or one call within another; what it does beside it is."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    task = import_module("overhead_task")

    def work(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    class Engine:
        def step(self) -> str:
            work(0.05)
            return self.backward()

        def backward(self) -> str:
            work(0.05)
            return "done"

    for name in ("step", "backward"):
        task.leave_out(Engine, name)
    before = dict(zip(task.CLOCKS, task._now(), strict=True))
    work(0.03)
    assert Engine().step() == "done"
    after = dict(zip(task.CLOCKS, task._now(), strict=True))
    passed = {name: (after[name] - before[name]) / 1e9 for name in task.CLOCKS}
    assert passed["thread"] >= 0.13
    assert 0.03 <= passed["outside"] <= passed["thread"] - 0.1
