"""benchmarks/overhead_engines.py: its interval is as sure as it says, and rows not shown below the bar run again."""

from __future__ import annotations

import json
import signal
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


@pytest.mark.parametrize(("runs", "farther", "least", "most"), [(28, 2, 0.93, 0.97), (4, 9, 0.95, 0.99)])
@pytest.mark.parametrize("heavy_tails", [False, True])
def test_the_shift_of_two_samples_is_within_its_interval(
    script: Any, heavy_tails: bool, runs: int, farther: float, least: float, most: float
) -> None:
    """In at least 95 of 100 pairs of samples, whatever their distribution; a shift of more is outside."""
    assert runs >= script.FEWEST
    shift = import_module("overhead_engines_figures").shift
    generator = torch.Generator().manual_seed(0)

    def sample() -> Tensor:
        drawn = torch.randn(2, runs, generator=generator, dtype=torch.float64)
        return drawn[0] / drawn[1].abs() if heavy_tails else drawn[0]

    found = [shift(sample() + 7, sample()) for _ in range(1000)]
    assert least < sum(low <= 7 <= high for low, _, high in found) / len(found) < most
    assert sum(low <= 7 + farther <= high for low, _, high in found) / len(found) < 0.5
    assert all(low <= estimate <= high for low, estimate, high in found)


@pytest.mark.parametrize(
    ("overhead", "least", "most", "code"), [(5.0, 4, 4, 0), (30.0, 24, 24, 1), (17.0, 5, 23, 0), (20.0, 24, 24, 1)]
)
def test_rows_are_measured_until_they_are_shown_below_the_bar(
    script: Any, monkeypatch: pytest.MonkeyPatch, overhead: float, least: int, most: int, code: int
) -> None:
    """What is clearly below it is not run again; one that is about it or above it is, as often as may be."""
    generator = torch.Generator().manual_seed(1)
    runs: list[str] = []

    def run(row: Any, arguments: Any) -> Tensor:
        del arguments
        runs.append(row.front_end)
        beyond = torch.randn(len(script.CLOCKS), generator=generator, dtype=torch.float64) * 5
        beyond += 0.0 if row.front_end == script.CONTROL else overhead
        return torch.stack([100 + beyond, torch.full_like(beyond, 100)])

    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script.signal, "signal", lambda *_: None)
    words = ["--check", "--only", "ddp_sharded", "--processes", "2", "--rounds", "4", "--more", "20"]
    monkeypatch.setattr(sys, "argv", ["overhead_engines.py", *words])
    assert script.main() == code
    assert least <= runs.count("Runtime") <= most
    assert runs.count(script.CONTROL) == runs.count("Runtime")
    assert runs.count("Trainer") == 4, "it has no bar"


@pytest.mark.parametrize(("whole_runs", "code"), [(7, "ended before there were runs enough"), (9, 0)])
def test_asked_to_end_it_gives_the_table_of_whole_runs(
    script: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    whole_runs: int,
    code: int | str,
) -> None:
    """SIGTERM ends the run that is under way; where each row has four, there is a table, else the exit says so.

    The file has all whole runs either way.
    """
    file = tmp_path / "figures.json"
    before = signal.getsignal(signal.SIGTERM)
    count = 0

    def run(row: Any, arguments: Any) -> Tensor:
        nonlocal count
        del row, arguments
        if count == whole_runs:
            signal.raise_signal(signal.SIGTERM)
        count += 1
        return torch.full((2, len(script.CLOCKS)), 100.0, dtype=torch.float64)

    monkeypatch.setattr(script, "run", run)
    words = ["--only", "ddp_sharded", "--processes", "2", "--rounds", "20", "--front-ends", "Runtime"]
    monkeypatch.setattr(sys, "argv", ["overhead_engines.py", *words, "--json", str(file)])
    try:
        ended: Any = script.main()
    except SystemExit as error:
        ended = error.code
    finally:
        signal.signal(signal.SIGTERM, before)
    assert str(ended).startswith(str(code))
    assert ("| ddp_sharded |" in capsys.readouterr().out) == (code == 0)
    rows = json.loads(file.read_text())["rows"]
    assert sum(len(row["runs"]) for row in rows) == whole_runs
    assert all(("outside" in row) == (code == 0) for row in rows)


def runs_of(script: Any, *pairs: tuple[float, float]) -> list[Tensor]:
    """Runs of six like epochs, from what the front end and the engine by hand take in a step."""
    return [script.run_of(torch.tensor([pair]).T.expand(6, 2, len(script.CLOCKS)).double()) for pair in pairs]


def test_a_run_counts_once_however_many_its_epochs(script: Any) -> None:
    """Epochs that agree with each other make runs no more alike: the interval is as wide as runs differ."""
    row = script.Row(script.ENGINES[0], "Runtime", 1)
    control = runs_of(script, (100, 100), (110, 100), (120, 100), (130, 100))
    runs = runs_of(script, (110, 100), (120, 100), (130, 100), (140, 100))
    figures = script.figures_of({script.control_of(row): control, row: runs})[row]["thread"]
    assert (figures.overhead, *figures.interval, figures.runs) == pytest.approx((10, -20, 40, 4))


def test_runs_count_at_their_median_speed(script: Any) -> None:
    """On a machine that changes its speed, figures are as on one that always has the median speed."""
    row = script.Row(script.ENGINES[0], "Runtime", 1)
    speeds = (1, 3, 2, 2, 1.5)
    control = runs_of(script, *((102 * speed, 100 * speed) for speed in speeds[::-1]))
    runs = runs_of(script, *((112 * speed, 100 * speed) for speed in speeds))
    two_processes = script.Row(row.engine, "Runtime", 2)
    other = runs_of(script, (60, 50), (60, 50), (60, 50), (60, 50))
    figures = script.figures_of(
        {
            script.control_of(row): control,
            row: runs,
            script.control_of(two_processes): other,
            two_processes: other,
        }
    )
    found = figures[row]["thread"]
    assert (*found.step, found.overhead, *found.interval) == pytest.approx((100, 200, 300, 20, 20, 20))
    assert figures[script.control_of(row)]["thread"].overhead == pytest.approx(4)


def test_it_goes_on_from_the_runs_of_a_file(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --continue rows run as often as they still have to; a file measured otherwise is refused."""
    count = 0

    def run(row: Any, arguments: Any) -> Tensor:
        nonlocal count
        del row, arguments
        count += 1
        return torch.full((2, len(script.CLOCKS)), 100.0 + count, dtype=torch.float64)

    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script.signal, "signal", lambda *_: None)
    words = ["overhead_engines.py", "--only", "ddp_sharded", "--processes", "2", "--front-ends", "Runtime"]
    words += ["--json", str(tmp_path / "figures.json")]
    for more, expected in ((["--rounds", "4"], 8), (["--rounds", "6", "--continue"], 12)):
        monkeypatch.setattr(sys, "argv", words + more)
        assert script.main() == 0
        assert count == expected
    assert "| 6 | 101, 106, 112 |" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*words, "--epochs", "9", "--continue"])
    with pytest.raises(SystemExit, match=r"figures\.json is of .*'epochs': 8.* Valid: .*'epochs': 9"):
        script.main()
    monkeypatch.setattr(sys, "argv", [*words, "--continue", "--processes", "1"])
    with pytest.raises(SystemExit, match=r"figures\.json has rows that these words leave out: \['ddp_sharded, Runtime"):
        script.main()
    assert count == 12


def test_a_runs_figure_is_the_median_of_what_its_epochs_are_beyond(script: Any) -> None:
    """One slow epoch does not touch it, and neither does one in which both sides are slow."""
    epochs = torch.tensor([[110.0, 100], [113, 100], [900, 100], [511, 500], [112, 100]], dtype=torch.float64)
    run = script.run_of(epochs[:, :, None].expand(-1, -1, len(script.CLOCKS)))
    assert run[:, 0].tolist() == [112, 100]


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
