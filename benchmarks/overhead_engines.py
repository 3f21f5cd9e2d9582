"""Measures the microseconds per step that a strategy takes in addition to the same engine driven by hand.

    python benchmarks/overhead_engines.py --check
    python benchmarks/overhead_engines.py --only fsdp deepspeed --processes 2 --write docs/strategies.md

As in `overhead.py`: the Runtime, or the Trainer with everything disabled, trains with a strategy, and in the same
processes the engine driven by hand takes turns with it, step by step. `README.md` describes the method. Engines that
are not installed are named and left out.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from importlib import import_module
from pathlib import Path
from statistics import NormalDist

import torch
from overhead import silence
from overhead_contenders import runtime, trainer_bare
from overhead_hands import ENGINES, Engine, beside_itself
from overhead_task import CLOCKS, Task, own_numbers
from pages import versions, write_between
from torch import Tensor

BAR = 20.0
STRETCH = 1
"""Steps between two turns: the machine is then most alike for the two. Two processes wait for each other as the machine
lets them, which changes within milliseconds: at five steps a turn, an epoch's figure varies four times as much."""
FRONT_ENDS = ("Runtime", "Trainer")
CONFIDENCE = 0.95
FEWEST = 4
"""Runs, of which two samples can be told apart with that confidence: of three there is no such interval."""
CONTROL = "by hand"
"""In a front end's place: the engine by hand."""
SECONDS = 300
"""That one run of an engine may take."""


@dataclass(frozen=True)
class Row:
    """What is measured in separate processes.

    Attributes:
        engine: Which.
        front_end: Its name, or :data:`CONTROL`.
        processes: How many.
    """

    engine: Engine
    front_end: str
    processes: int

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.engine.name}, {self.front_end}, {self.processes} process(es)"

    @property
    def has_bar(self) -> bool:
        """Whether the limit applies: the Trainer has its own modules for the engine to go through."""
        return self.front_end == "Runtime" and self.engine.is_list


@dataclass(frozen=True)
class Figures:
    """What all runs gave for a row by one clock, in microseconds a step at the median speed.

    Attributes:
        step: The engine by hand in the quickest run, in the median one, and in the slowest.
        overhead: What the front end takes beyond the control; of the control, median beyond the engine by hand.
        interval: Where that is, with the confidence of :data:`CONFIDENCE`; for the control, its quartiles.
        runs: How many there were.
    """

    step: tuple[float, float, float]
    overhead: float
    interval: tuple[float, float]
    runs: int


def main() -> int:
    arguments = read_arguments()
    if arguments.worker is not None:
        return work(arguments)
    rows = chosen(arguments)
    if not rows:
        print(f"--only: no engine that is installed has any of {arguments.only} in its name", file=sys.stderr)
        return 2
    figures = measure(rows, arguments)
    table = "\n".join(lines(figures, arguments))
    print(table)
    if arguments.write is not None:
        write_between(arguments.write, "overhead", table)
    broken = not_below_the_bar(figures, arguments.clock)
    if broken:
        names = "; ".join(row.name for row in broken)
        print(f"over the limit, or not shown to be below it: {names}", file=sys.stderr)
    return 1 if broken and arguments.check else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help=f"runs per row, from {FEWEST} (5)")
    parser.add_argument("--more", type=int, default=20, help="further rounds for rows over the limit (20)")
    parser.add_argument("--steps", type=int, default=100, help="steps per epoch (100)")
    parser.add_argument("--epochs", type=int, default=8, help="epochs per run, first and last not measured (8)")
    parser.add_argument("--clock", choices=CLOCKS, default="outside", help="clock for the limit (outside)")
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""], help="engines with TEXT in their name")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2], help="numbers of processes (1 2)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table between its markers in FILE")
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if a row is not below {BAR:.0f}")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(arguments: argparse.Namespace) -> list[Row]:
    named = [one for one in ENGINES if any(text.lower() in one.name.lower() for text in arguments.only)]
    for engine in named:
        if engine.missing:
            print(f"{engine.name}: left out, not installed: {', '.join(engine.missing)}", file=sys.stderr)
    installed = [engine for engine in named if not engine.missing]
    return [
        Row(engine, front_end, processes)
        for processes in arguments.processes
        for engine in installed
        for front_end in (CONTROL, *FRONT_ENDS)
    ]


# -- all runs ------------------------------------------------------------------------------------------------------


def measure(rows: list[Row], arguments: argparse.Namespace) -> dict[Row, dict[str, Figures]]:
    """Run all rows as often as asked, then those not shown to be below the bar again."""
    measured: dict[Row, list[Tensor]] = {row: [] for row in rows}
    while due := rows_due(measured, arguments):
        for row in due:
            measured[row].append(run(row, arguments))
        print(f"measured {len(due)} row(s)", file=sys.stderr)
    return figures_of(measured)


def rows_due(measured: dict[Row, list[Tensor]], arguments: argparse.Namespace) -> list[Row]:
    """Those to run next: what has too few runs, else what is not shown to be below the bar, with its control."""
    too_few = [row for row, runs in measured.items() if len(runs) < max(arguments.rounds, FEWEST)]
    if too_few:
        return too_few
    figures = figures_of(measured)
    open_ones = not_below_the_bar(figures, arguments.clock)
    for one in open_ones:
        print(f"not shown to be below the limit: {one.name}: {spread(figures[one][arguments.clock])}", file=sys.stderr)
    again = [one for one in open_ones if len(measured[one]) < arguments.rounds + arguments.more]
    return [row for one in again for row in (control_of(one), one)]


def not_below_the_bar(figures: dict[Row, dict[str, Figures]], clock: str) -> list[Row]:
    """The rows that have a bar and are not shown, by ``clock``, to be below it."""
    return [row for row, found in figures.items() if row.has_bar and found[clock].interval[1] > BAR]


# -- one run -------------------------------------------------------------------------------------------------------


def run(row: Row, arguments: argparse.Namespace) -> Tensor:
    """The front end's and the hand's median epoch in process 0, in separate processes; shape ``(2, clocks)``."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "times.json"
        worker = [row.engine.name, row.front_end, str(row.processes), str(file)]
        script = [__file__, "--steps", str(arguments.steps), "--epochs", str(arguments.epochs), "--worker", *worker]
        process = subprocess.Popen(
            row.engine.command(row.processes, *script),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except BaseException:
            end(process)
            raise
        if process.returncode != 0 or not file.exists():
            raise SystemExit(f"{row.name}: ended with code {process.returncode}\n{said}")
        return run_of(torch.tensor(json.loads(file.read_text()), dtype=torch.float64))


def end(process: subprocess.Popen[str]) -> None:
    """End a run that takes too long: a launcher ends its processes when it is asked to, but not when it is killed."""
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def work(arguments: argparse.Namespace) -> int:
    """One process of a run."""
    name, front_end, processes, file = arguments.worker
    engine = next(one for one in ENGINES if one.name == name)
    rank = int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0")))
    torch.set_num_threads(1)
    with silence():
        for needed in engine.needs:
            import_module(needed)
    engine.leave_out_calls()
    # What was imported stays out of every later collection.
    gc.collect()
    gc.freeze()
    task = Task(arguments.epochs, arguments.steps, engine.by_hand, rank, int(processes), STRETCH, engine.is_list)
    with silence():
        if front_end == CONTROL:
            network = beside_itself(task, engine)
        else:
            train = runtime if front_end == "Runtime" else trainer_bare
            network = train(task, engine.make_optimizer, strategy=engine.strategy())
    if (engine.repeats or task.processes == 1) and not torch.equal(own_numbers(network, rank), task.expected):
        raise SystemExit(f"rank {rank}: the parameters are not bit for bit those of the engine by hand")
    if rank == 0:
        Path(file).write_text(json.dumps(torch.stack(task.median_times(), dim=1)[1:].tolist()))
    if front_end == CONTROL:
        os._exit(0)  # the engine is still in its process group, so torch may abort at exit
    return 0


# -- the figures ---------------------------------------------------------------------------------------------------


def control_of(row: Row) -> Row:
    """The row that it is compared with."""
    return replace(row, front_end=CONTROL)


def run_of(epochs: Tensor) -> Tensor:
    """A run's figures from its epochs', of shape ``(epochs, 2, clocks)``: what is beyond the hand, its median."""
    by_hand = epochs[:, 1].quantile(0.5, dim=0)
    return torch.stack([by_hand + (epochs[:, 0] - epochs[:, 1]).quantile(0.5, dim=0), by_hand])


def figures_of(runs: dict[Row, list[Tensor]]) -> dict[Row, dict[str, Figures]]:
    """Of each row's runs, each of shape ``(2, clocks)``: the figures by each clock."""
    times = {row: torch.stack(taken) for row, taken in runs.items()}
    shares = {row: (taken[:, 0] - taken[:, 1]) / taken[:, 1] for row, taken in times.items()}
    figures: dict[Row, dict[str, Figures]] = {}
    for row in runs:
        alike = [taken[:, 1] for one, taken in times.items() if control_of(one) == control_of(row)]
        steps = torch.cat(alike).quantile(torch.tensor([0, 0.5, 1], dtype=torch.float64), dim=0)
        figures[row] = {}
        for index, clock in enumerate(CLOCKS):
            quickest, median, slowest = steps[:, index].tolist()
            own = shares[row][:, index] * median
            if row.front_end == CONTROL:
                low, overhead, high = own.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=own.dtype)).tolist()
            else:
                low, overhead, high = shift(own, shares[control_of(row)][:, index] * median)
            figures[row][clock] = Figures((quickest, median, slowest), overhead, (low, high), len(own))
    return figures


def shift(values: Tensor, control: Tensor) -> tuple[float, float, float]:
    """By how much ``values`` lie above ``control``, vectors of two samples: lower bound, estimate, upper bound."""
    differences = (values[:, None] - control[None]).flatten().sort().values
    rank = rank_of_bound(len(values), len(control))
    return differences[rank - 1].item(), differences.quantile(0.5).item(), differences[-rank].item()


def rank_of_bound(count: int, others: int) -> int:
    """Which of the differences between two samples, from below and from above, bounds their shift."""
    # The normal approximation of Mann and Whitney's statistic; 0 where the samples are too small.
    deviation = math.sqrt(count * others * (count + others + 1) / 12)
    return max(0, int(count * others / 2 - NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * deviation))


# -- the table -----------------------------------------------------------------------------------------------------


def lines(figures: dict[Row, dict[str, Figures]], arguments: argparse.Namespace) -> Iterator[str]:
    yield f"µs per step, from runs of {arguments.epochs - 2} times {arguments.steps} steps, at their median speed; in"
    yield f"brackets the {CONFIDENCE:.0%} confidence interval, or the control's quartiles. Step: the engine driven by"
    yield f"hand, in the fastest, the median and the slowest run. Limit for the Runtime: {BAR:.0f}, by the clock"
    yield f"`{arguments.clock}`."
    yield ""
    clocks = list(dict.fromkeys((arguments.clock, "thread", "wall")))
    shown = [(CONTROL, arguments.clock), *itertools.product(FRONT_ENDS, clocks)]
    step_clock = "thread" if arguments.clock == "outside" else arguments.clock
    columns = " | ".join(f"{'control' if front_end == CONTROL else front_end}, {clock}" for front_end, clock in shown)
    yield f"| strategy | by hand | processes | runs | step | {columns} |"
    yield f"|---|---|{'---:|' * (3 + len(shown))}"
    for processes in arguments.processes:
        for engine in dict.fromkeys(row.engine for row in figures):
            found = [figures[Row(engine, front_end, processes)][clock] for front_end, clock in shown]
            cells = " | ".join(map(spread, found))
            whole = figures[Row(engine, CONTROL, processes)][step_clock]
            step = ", ".join(f"{one:.0f}" for one in whole.step)
            yield f"| {engine.name} | {engine.hand} | {processes} | {whole.runs} | {step} | {cells} |"
    barred = [row for row in figures if row.has_bar]
    broken = not_below_the_bar(figures, arguments.clock)
    below = f"{len(barred) - len(broken)} of {len(barred)}" if broken else f"All {len(barred)}"
    yield ""
    yield f"{below} rows are below the limit with their whole interval. Measured on {date.today().isoformat()}, on"
    yield f"{os.cpu_count()} cores, {versions('torch', 'deepspeed', 'horovod')}."


def spread(found: Figures) -> str:
    low, high = found.interval
    return f"{found.overhead:+.1f} ({low:+.0f} to {high:+.0f})"


if __name__ == "__main__":
    sys.exit(main())
