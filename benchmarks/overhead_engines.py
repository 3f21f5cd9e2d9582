"""Measures the microseconds per step that a strategy takes in addition to the same engine driven by hand.

    python benchmarks/overhead_engines.py --check
    python benchmarks/overhead_engines.py --only fsdp deepspeed --processes 2 --write docs/strategies.md
    python benchmarks/overhead_engines.py --json figures.json --continue

As in `overhead.py`: the Runtime, or the Trainer with everything disabled, trains with a strategy, and in the same
processes the engine driven by hand takes turns with it, step by step. With one process, the process group has one
member, and the engine's own code is measured. With two, both processes take turns at the same step, so that both sides
wait for the other process alike. Each run must end with the same bits as the engine by hand, unless the engine is not
deterministic.

Of equal engines in one process, the one created last is the fastest, by up to 2 % of a step. So there is a control:
runs with the engine by hand in the front end's place. The overhead of a front end is the difference from the control;
the control's difference from 0 shows the size of that effect.

A run counts once, with the median of its epochs, and an epoch with the median of its steps: the epochs of a process
share its memory layout, and runs differ far more than the epochs of one run. A front end's figure is the median of all
differences between one of its runs and one of the control's (Hodges and Lehmann, "Estimates of location based on rank
tests", 1963), with the 95 % confidence interval of Mann and Whitney's test. Rows whose interval reaches over the limit
are measured in further rounds, with their control; all rounds count. The limit is met if the whole interval is below.

A shared machine changes its speed between runs, at times by a factor of two, and software times change with it. So
times are relative to the engine by hand: a run's overhead, as a share of the engine's step, is converted at the median
speed of the row's runs, for front ends and control alike.

The limit applies to the CPU time of the thread that runs the loop, which other work on the machine hardly affects.
DeepSpeed's engine takes milliseconds of a step in the three calls that both sides make, and these vary by more than the
limit; Horovod's polls for the other process on that thread. For these engines the limit applies to the time outside
these calls, and the table also has the whole step. Engines that are not installed are named and left out.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import torch
from overhead import at_least, conditions, silence
from overhead_contenders import runtime, trainer_bare
from overhead_engines_figures import CONFIDENCE, CONTROL, FEWEST, Figures, Row, control_of, figures_of, run_of, spread
from overhead_hands import ENGINES, beside_itself
from overhead_task import CLOCKS, Task, own_numbers
from pages import write_between
from torch import Tensor

BAR = 20.0
STRETCH = 1
"""Steps between two turns: the machine is then most alike for the two. Two processes wait for each other as the machine
lets them, which changes within milliseconds: at five steps a turn, an epoch's figure varies four times as much."""
FRONT_ENDS = ("Runtime", "Trainer")
SECONDS = 300
"""That one run of an engine may take."""


def main() -> int:
    """Measure, print, and say whether the bar holds."""
    arguments = read_arguments()
    if arguments.worker is not None:
        return work(arguments)
    rows = chosen(arguments)
    if not rows:
        print(f"--only: no engine that is installed has any of {arguments.only} in its name", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, ask_to_end)
    runs = measure(rows, earlier_runs(rows, arguments), arguments)
    figures = figures_of(runs)
    table = "\n".join(lines(figures, arguments))
    print(table)
    if arguments.write is not None:
        write_between(arguments.write, "overhead", table)
    write_json(runs, figures, arguments)
    broken = not_below_the_bar(figures, arguments.clock)
    if broken:
        names = "; ".join(row.name for row in broken)
        print(f"over the limit, or not shown to be below it: {names}", file=sys.stderr)
    return 1 if broken and arguments.check else 0


class AskedToEnd(Exception):
    """By a signal, which an exception makes end the run that is under way."""


def ask_to_end(*_: object) -> None:
    """What SIGTERM does."""
    raise AskedToEnd


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(FEWEST), default=5, help=f"runs per row, from {FEWEST} (5)")
    parser.add_argument("--more", type=at_least(0), default=20, help="further rounds for rows over the limit (20)")
    parser.add_argument("--steps", type=at_least(STRETCH), default=100, help="steps per epoch (100)")
    parser.add_argument("--epochs", type=at_least(3), default=8, help="epochs per run, first and last not measured (8)")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="outside",
        help="clock for the limit (outside: the loop's thread, without the engine's own calls)",
    )
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""], help="engines with TEXT in their name")
    parser.add_argument("--processes", nargs="+", type=at_least(1), default=[1, 2], help="numbers of processes (1 2)")
    parser.add_argument("--front-ends", nargs="+", choices=FRONT_ENDS, default=FRONT_ENDS, help="front ends (all)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table between its markers in FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all runs and figures to FILE, after each run")
    parser.add_argument(
        "--continue", dest="go_on", action="store_true", help="continue with the runs in the file of --json"
    )
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if a row is not below {BAR:.0f}")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.go_on and (arguments.json is None or not arguments.json.exists()):
        parser.error("--continue: there is no file of --json")
    return arguments


def chosen(arguments: argparse.Namespace) -> list[Row]:
    """The rows of the table."""
    named = [one for one in ENGINES if any(text.lower() in one.name.lower() for text in arguments.only)]
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


def measure(
    rows: list[Row], earlier: dict[Row, list[Tensor]], arguments: argparse.Namespace
) -> dict[Row, list[Tensor]]:
    """Run all rows as often as asked, ``earlier`` runs included, then those not shown to be below the bar again.

    Raises:
        SystemExit: Asked to end while there are too few runs of a row.
    """
    measured = {row: list(earlier[row]) for row in rows}
    try:
        while due := rows_due(measured, arguments):
            for row in due:
                measured[row].append(run(row, arguments))
                write_json(measured, {}, arguments)  # whatever becomes of the next run
            print(f"measured {len(due)} row(s)", file=sys.stderr)
    except AskedToEnd:
        if min(map(len, measured.values())) < FEWEST:
            raise SystemExit("ended before there were runs enough for a table") from None
        print("interrupted: the table has all complete runs", file=sys.stderr)
    return measured


def rows_due(measured: dict[Row, list[Tensor]], arguments: argparse.Namespace) -> list[Row]:
    """Those to run next: what has too few runs, else what is not shown to be below the bar, with its control."""
    too_few = [row for row, runs in measured.items() if len(runs) < arguments.rounds]
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
        os._exit(0)  # the engine is still in its process group, so torch may abort at exit
    return 0


# -- the file ------------------------------------------------------------------------------------------------------


def write_json(
    runs: dict[Row, list[Tensor]], figures: dict[Row, dict[str, Figures]], arguments: argparse.Namespace
) -> None:
    """All runs, with the figures that come from them where there are any, to the file of ``--json`` if one is named."""
    if arguments.json is None:
        return
    found = [
        {
            "name": row.name,
            **{clock: asdict(figure) for clock, figure in figures.get(row, {}).items()},
            "runs": [run.tolist() for run in taken],
        }
        for row, taken in runs.items()
    ]
    partial = arguments.json.with_name(f"{arguments.json.name}.part")
    partial.write_text(json.dumps({**conditions(arguments), "rows": found}, indent=1) + "\n")
    partial.replace(arguments.json)


def earlier_runs(rows: list[Row], arguments: argparse.Namespace) -> dict[Row, list[Tensor]]:
    """What the file of ``--json`` has of these rows, with ``--continue``.

    Raises:
        SystemExit: It was measured otherwise, or has other rows, which would be lost.
    """
    if not arguments.go_on:
        return {row: [] for row in rows}
    found = json.loads(arguments.json.read_text())
    own = {name: value for name, value in conditions(arguments).items() if name != "rounds"}
    theirs = {name: found[name] for name in own}
    if theirs != own:
        raise SystemExit(f"--continue: {arguments.json} is of {theirs}. Valid: a file of {own}")
    others = {one["name"] for one in found["rows"]} - {row.name for row in rows}
    if others:
        raise SystemExit(f"--continue: {arguments.json} has rows that are not selected: {sorted(others)}")
    runs = {one["name"]: [torch.tensor(run, dtype=torch.float64) for run in one["runs"]] for one in found["rows"]}
    return {row: runs.get(row.name, []) for row in rows}


# -- the table -----------------------------------------------------------------------------------------------------


def lines(figures: dict[Row, dict[str, Figures]], arguments: argparse.Namespace) -> Iterator[str]:
    """The table, in Markdown."""
    yield f"µs per step, from runs of {arguments.epochs - 2} times {arguments.steps} steps, at their median speed; in"
    yield f"brackets the {CONFIDENCE:.0%} confidence interval, or the control's quartiles. Step: the engine driven by"
    yield f"hand, in the fastest, the median and the slowest run. Limit for the Runtime: {BAR:.0f}, by the clock"
    yield f"`{arguments.clock}`."
    yield ""
    clocks = list(dict.fromkeys((arguments.clock, "thread", "wall")))
    shown = [(CONTROL, arguments.clock), *itertools.product(arguments.front_ends, clocks)]
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


if __name__ == "__main__":
    sys.exit(main())
