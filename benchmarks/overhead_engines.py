"""Microseconds a step that a strategy takes beyond the same engine driven by hand.

    python benchmarks/overhead_engines.py --check
    python benchmarks/overhead_engines.py --only fsdp deepspeed --processes 2 --write docs/strategies.md

As in `overhead.py`: the Runtime, or the Trainer with everything off, trains with a strategy, and in the same processes
the engine driven by hand takes turns with it, some steps each. In one process there is a process group of one: what is
measured is the engine's way through its own software. In two, all of them change turns at the same step, so that both
sides wait for the other process alike. Each run must end with the bits that the engine by hand ends with, unless the
engine itself does not repeat them. The front end "by hand" is the
engine beside itself, and shows how exact the figures are. Engines that are not installed are left out, and named.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import torch
from overhead import Figures, at_least, conditions, silence, summarize
from overhead_contenders import runtime, trainer_bare
from overhead_hands import ENGINES, Engine, beside_itself
from overhead_task import CLOCKS, STRETCH, Task, own_numbers
from pages import write_between
from torch import Tensor

BAR = 20.0
FRONT_ENDS = ("by hand", "Runtime", "Trainer")
"""What trains; by hand is the engine beside itself."""
SECONDS = 300
"""That one run of an engine may take."""


@dataclass(frozen=True)
class Row:
    """What is measured in processes of its own.

    Attributes:
        engine: Which.
        front_end: One of :data:`FRONT_ENDS`.
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
    measured: dict[Row, list[Tensor]] = {row: [] for row in rows}
    for number in range(arguments.rounds):
        for row in rows:
            measured[row].append(run(row, arguments))
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    figures = {row: by_clock(torch.cat(times)) for row, times in measured.items()}
    table = "\n".join(lines(figures, arguments))
    print(table)
    if arguments.write is not None:
        write_between(arguments.write, "overhead", table)
    if arguments.json is not None:
        found = [{"name": row.name, **{clock: asdict(figures[row][clock]) for clock in CLOCKS}} for row in rows]
        arguments.json.write_text(json.dumps({**conditions(arguments), "rows": found}, indent=1) + "\n")
    broken = [row.name for row in rows if row.has_bar and figures[row][arguments.clock].overhead > BAR]
    if broken:
        print(f"over the bar: {'; '.join(broken)}", file=sys.stderr)
    return 1 if broken and arguments.check else 0


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=2, help="processes for each row, one after another (2)")
    parser.add_argument("--steps", type=at_least(1), default=1000, help="steps an epoch (1000)")
    parser.add_argument("--epochs", type=at_least(3), default=7, help="of a run, first and last not measured (7)")
    parser.add_argument("--clock", choices=CLOCKS, default="cpu", help="that the bar is held to (cpu: without waiting)")
    parser.add_argument("--only", nargs="+", metavar="WORD", default=[""], help="engines with a WORD in their name")
    parser.add_argument("--processes", nargs="+", type=at_least(1), default=[1, 2], help="numbers of processes (1 2)")
    parser.add_argument("--front-ends", nargs="+", choices=FRONT_ENDS, default=FRONT_ENDS, help="which (all)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table between the marks in FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, by both clocks, to FILE")
    parser.add_argument("--check", action="store_true", help=f"exit code 1 where one is over {BAR:.0f} microseconds")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


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
        for front_end in arguments.front_ends
    ]


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
    # What was imported stays out of every later collection.
    gc.collect()
    gc.freeze()
    task = Task(arguments.epochs, arguments.steps, engine.by_hand, rank, int(processes))
    with silence():
        if front_end == "by hand":
            network = beside_itself(task, engine)
        else:
            train = runtime if front_end == "Runtime" else trainer_bare
            network = train(task, engine.make_optimizer, strategy=engine.strategy())
    if (engine.repeats or task.processes == 1) and not torch.equal(own_numbers(network, rank), task.expected):
        raise SystemExit(f"rank {rank}: the parameters are not bit for bit those of the engine by hand")
    if rank == 0:
        Path(file).write_text(json.dumps(torch.stack(task.median_times(), dim=1)[1:].tolist()))
    return 0


# -- the table -----------------------------------------------------------------------------------------------------


def by_clock(times: Tensor) -> dict[str, Figures]:
    """Figures of times of shape ``(epochs, 2, clocks)``."""
    return {clock: summarize(*times[..., index].unbind(1)) for index, clock in enumerate(CLOCKS)}


def lines(figures: dict[Row, dict[str, Figures]], arguments: argparse.Namespace) -> Iterator[str]:
    """The table, in Markdown."""
    epochs = arguments.rounds * (arguments.epochs - 2)
    yield f"µs a step: medians and quartiles of {epochs} epochs of {arguments.steps} steps, each with its median over"
    yield f"stretches of {STRETCH}. Runtime's bar: {BAR:.0f} over the engine by hand by the {arguments.clock} clock."
    yield ""
    yield "| strategy | by hand | processes | front end | step | over by hand, wall | over by hand, CPU | ratio |"
    yield "|---|---|---:|---|---:|---:|---:|---:|"
    for row, found in figures.items():
        over = " | ".join(spread(found[clock]) for clock in CLOCKS)
        chosen = found[arguments.clock]
        yield (
            f"| {row.engine.name} | {row.engine.hand} | {row.processes} | {row.front_end} | {chosen.step:.0f} | {over} "
            f"| {chosen.ratio:.2f} |"
        )


def spread(found: Figures) -> str:
    """The overhead with its quartiles."""
    low, high = found.quartiles
    return f"{found.overhead:+.1f} ({low:+.0f} to {high:+.0f})"


if __name__ == "__main__":
    sys.exit(main())
