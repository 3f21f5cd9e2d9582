"""Microseconds a step that a strategy takes beyond the same engine driven by hand.

    python benchmarks/overhead_engines.py --check
    python benchmarks/overhead_engines.py --only fsdp deepspeed --processes 2 --write docs/strategies.md

As in `overhead.py`: the Runtime, or the Trainer with everything off, trains with a strategy, and in the same processes
the engine driven by hand takes turns with it, step by step. In one process there is a process group of one: what is
measured is the engine's way through its own software. In two, all of them change turns at the same step, so that both
sides wait for the other process alike. Each run must end with the bits that the engine by hand ends with, unless the
engine itself does not repeat them.

Of equal engines in one process, the one made last is the quickest, by up to 2 % of a step. So there is a control: runs
in which the engine by hand is in the front end's place, beside itself. What a front end takes is by how much the epochs
of its runs lie above the control's; what the control differs by from 0 shows how large that influence is.

An epoch counts with the median of its steps. A front end's figure is the median of all differences between one of its
epochs and one of the control's (Hodges and Lehmann, "Estimates of location based on rank tests", 1963); beside it is
the interval that Mann and Whitney's test leaves, with 95 % confidence if epochs are independent of each other. Those of
one run are not quite: so there are several runs of a row, and those whose interval reaches over the bar are measured in
further rounds, with their control, all of which counts. The bar holds where the whole interval is below it, by the
clock of the thread that runs the loop: others that work on the machine, the other process among them, hardly touch that
one. DeepSpeed's engine does milliseconds of its own in a step, in the three calls that both sides make of it, and from
run to run they differ by more than the bar: there the bar is held to what the thread spends outside of these calls, and
the whole step stands beside it. Engines that are not installed are left out, and named.
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
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import NormalDist

import torch
from overhead import at_least, conditions, silence
from overhead_contenders import runtime, trainer_bare
from overhead_hands import ENGINES, Engine, beside_itself
from overhead_task import CLOCKS, Task, own_numbers
from pages import write_between
from torch import Tensor

BAR = 20.0
STRETCH = 1
"""Steps between two turns: the machine is then most alike for the two. Two processes wait for each other as the machine
lets them, which changes within milliseconds: at five steps a turn, an epoch's figure varies four times as much."""
CONFIDENCE = 0.95
FRONT_ENDS = ("Runtime", "Trainer")
CONTROL = "by hand"
"""In a front end's place: the engine by hand once more."""
SECONDS = 300
"""That one run of an engine may take."""


@dataclass(frozen=True)
class Row:
    """What is measured in processes of its own.

    Attributes:
        engine: Which.
        front_end: One of :data:`FRONT_ENDS`, or :data:`CONTROL`.
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
        """Whether it is the Runtime: the Trainer has modules of its own for the engine to go through."""
        return self.front_end == "Runtime"


@dataclass(frozen=True)
class Figures:
    """What all runs gave for a row by one clock, in microseconds a step.

    Attributes:
        step: Median of the engine by hand.
        overhead: What the front end takes beyond the control; of the control, median beyond the engine by hand.
        interval: Where that is, with the confidence of :data:`CONFIDENCE`; for the control, its quartiles.
        epochs: How many there were.
    """

    step: float
    overhead: float
    interval: tuple[float, float]
    epochs: int


def main() -> int:
    """Measure, print, and say whether the bar holds."""
    arguments = read_arguments()
    if arguments.worker is not None:
        return work(arguments)
    rows = chosen(arguments)
    if not rows:
        print(f"--only: no engine that is installed has any of {arguments.only} in its name", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by an exception, which ends the run that is under way
    figures = measure(rows, arguments)
    table = "\n".join(lines(figures, arguments))
    print(table)
    if arguments.write is not None:
        write_between(arguments.write, "overhead", table)
    if arguments.json is not None:
        found = [{"name": row.name, **{clock: asdict(figures[row][clock]) for clock in CLOCKS}} for row in rows]
        arguments.json.write_text(json.dumps({**conditions(arguments), "rows": found}, indent=1) + "\n")
    broken = not_below_the_bar(figures, arguments.clock)
    if broken:
        names = "; ".join(row.name for row in broken)
        print(f"over the bar, or not shown to be below it: {names}", file=sys.stderr)
    return 1 if broken and arguments.check else 0


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=2, help="runs for each row, one after another (2)")
    parser.add_argument("--more", type=at_least(0), default=12, help="rounds for rows not below the bar, at most (12)")
    parser.add_argument("--steps", type=at_least(STRETCH), default=200, help="steps an epoch (200)")
    parser.add_argument("--epochs", type=at_least(3), default=16, help="of a run, first and last not measured (16)")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="outside",
        help="that the bar is held to (outside: the loop's thread, but for the calls of an engine that has such)",
    )
    parser.add_argument("--only", nargs="+", metavar="WORD", default=[""], help="engines with a WORD in their name")
    parser.add_argument("--processes", nargs="+", type=at_least(1), default=[1, 2], help="numbers of processes (1 2)")
    parser.add_argument("--front-ends", nargs="+", choices=FRONT_ENDS, default=FRONT_ENDS, help="which (all)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the marks in FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, by all clocks, to FILE")
    parser.add_argument("--check", action="store_true", help=f"exit code 1 where one is not below {BAR:.0f}")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is None and rank_of_bound(epochs := arguments.rounds * (arguments.epochs - 2), epochs) < 1:
        parser.error(f"--rounds times --epochs less two: {epochs} epochs are too few for the interval")
    return arguments


def chosen(arguments: argparse.Namespace) -> list[Row]:
    """The rows of the table."""
    named = [one for one in ENGINES if any(word.lower() in one.name.lower() for word in arguments.only)]
    for engine in named:
        if engine.missing:
            print(f"{engine.name}: left out, not installed: {', '.join(engine.missing)}", file=sys.stderr)
    installed = [engine for engine in named if not engine.missing]
    return [
        Row(engine, front_end, processes)
        for processes in arguments.processes
        for engine in installed
        for front_end in (CONTROL, *arguments.front_ends)
    ]


# -- all runs ------------------------------------------------------------------------------------------------------


def measure(rows: list[Row], arguments: argparse.Namespace) -> dict[Row, dict[str, Figures]]:
    """Run all rows as often as asked, then those that are not shown to be below the bar again."""
    measured: dict[Row, list[Tensor]] = {row: [] for row in rows}
    due = rows
    for number in range(arguments.rounds + arguments.more):
        for row in due:
            measured[row].append(run(row, arguments))
        figures = figures_of({row: torch.cat(times) for row, times in measured.items()})
        print(f"round {number + 1}: {len(due)} row(s)", file=sys.stderr)
        if number + 1 >= arguments.rounds:
            open_ones = not_below_the_bar(figures, arguments.clock)
            due = [row for one in open_ones for row in (replace(one, front_end=CONTROL), one)]
            for one in open_ones:
                print(f"not shown below the bar: {one.name}: {spread(figures[one][arguments.clock])}", file=sys.stderr)
        if not due:
            break
    return figures


def not_below_the_bar(figures: dict[Row, dict[str, Figures]], clock: str) -> list[Row]:
    """The rows that have a bar and are not shown, by ``clock``, to be below it."""
    return [row for row, found in figures.items() if row.has_bar and found[clock].interval[1] > BAR]


# -- one run -------------------------------------------------------------------------------------------------------


def run(row: Row, arguments: argparse.Namespace) -> Tensor:
    """The times of process 0, in processes of its own; of shape ``(epochs measured, 2, clocks)``."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "times.json"
        words = [row.engine.name, row.front_end, str(row.processes), str(file)]
        script = [__file__, "--steps", str(arguments.steps), "--epochs", str(arguments.epochs), "--worker", *words]
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
        return torch.tensor(json.loads(file.read_text()), dtype=torch.float64)


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
    task = Task(arguments.epochs, arguments.steps, engine.by_hand, rank, int(processes), STRETCH)
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
        os._exit(0)  # nobody has parted the engine from its process group, without which torch may abort at the end
    return 0


# -- the table -----------------------------------------------------------------------------------------------------


def figures_of(times: dict[Row, Tensor]) -> dict[Row, dict[str, Figures]]:
    """Of each row's times, of shape ``(epochs, 2, clocks)``: the figures by each clock."""
    beyond = {row: taken[:, 0] - taken[:, 1] for row, taken in times.items()}
    figures: dict[Row, dict[str, Figures]] = {}
    for row, taken in times.items():
        figures[row] = {}
        for index, clock in enumerate(CLOCKS):
            own = beyond[row][:, index]
            if row.front_end == CONTROL:
                low, overhead, high = own.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=own.dtype)).tolist()
            else:
                low, overhead, high = shift(own, beyond[replace(row, front_end=CONTROL)][:, index])
            step = taken[:, 1, index].quantile(0.5).item()
            figures[row][clock] = Figures(step, overhead, (low, high), len(taken))
    return figures


def shift(values: Tensor, control: Tensor) -> tuple[float, float, float]:
    """By how much ``values`` lie above ``control``, vectors of two samples: lower bound, estimate, upper bound."""
    differences = (values[:, None] - control[None]).flatten().sort().values
    rank = rank_of_bound(len(values), len(control))
    return differences[rank - 1].item(), differences.quantile(0.5).item(), differences[-rank].item()


def rank_of_bound(count: int, others: int) -> int:
    """Which of the differences between two samples, from below and from above, bounds their shift.

    By the normal approximation of Mann and Whitney's statistic; 0 where the samples are too small.
    """
    deviation = math.sqrt(count * others * (count + others + 1) / 12)
    return max(0, int(count * others / 2 - NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * deviation))


def lines(figures: dict[Row, dict[str, Figures]], arguments: argparse.Namespace) -> Iterator[str]:
    """The table, in Markdown."""
    yield f"µs a step, from epochs of {arguments.steps} steps, {arguments.epochs - 2} a run; in brackets, where that is"
    yield f"with {CONFIDENCE:.0%} confidence; of the control, its quartiles. Bar of the Runtime: {BAR:.0f}, by clock"
    yield f"`{arguments.clock}`."
    yield ""
    clocks = list(dict.fromkeys((arguments.clock, "thread", "wall")))
    shown = [(CONTROL, arguments.clock), *itertools.product(arguments.front_ends, clocks)]
    step_clock = "thread" if arguments.clock == "outside" else arguments.clock
    columns = " | ".join(f"{'control' if front_end == CONTROL else front_end}, {clock}" for front_end, clock in shown)
    yield f"| strategy | by hand | processes | epochs | step | {columns} |"
    yield f"|---|---|{'---:|' * (3 + len(shown))}"
    for processes in arguments.processes:
        for engine in dict.fromkeys(row.engine for row in figures):
            found = [figures[Row(engine, front_end, processes)][clock] for front_end, clock in shown]
            cells = " | ".join(map(spread, found))
            whole = figures[Row(engine, CONTROL, processes)][step_clock]
            start = f"| {engine.name} | {engine.hand} | {processes} | {whole.epochs} | {whole.step:.0f}"
            yield f"{start} | {cells} |"


def spread(found: Figures) -> str:
    """The overhead with its interval."""
    low, high = found.interval
    return f"{found.overhead:+.1f} ({low:+.0f} to {high:+.0f})"


if __name__ == "__main__":
    sys.exit(main())
