"""Measures the microseconds per step that each front end takes in addition to a hand-written loop.

    python benchmarks/overhead.py --check
    python benchmarks/overhead.py --write    # writes the table to docs/performance.md
    python benchmarks/overhead.py --processes 2 --rounds 4 --steps 200 --epochs 4 --write

One process trains the same tiny network on the same batches with each installed front end, round after round. While a
front end trains, the hand-written loop takes turns with it, some steps each: the figure is the difference of an epoch's
time, and the table has the median over all epochs. The row "plain loop" compares the loop with itself and shows the
accuracy of the figures. Every run must end with the same parameters as the loop, bit for bit.

With ``--processes`` the loop by hand has DistributedDataParallel and a DistributedSampler, and each front end has its
own processes in each round; it gets the batches from a list, then from a data set of a class of the user's own.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import platform
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from overhead_contenders import Contender, contenders, on_several_processes
from overhead_task import CLOCKS, Task, own_numbers
from pages import versions, write_between
from processes import run_ranks
from torch import Tensor

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
# Lightning removes them from the environment.
RANK, PROCESSES = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


@dataclass(frozen=True)
class Figures:
    """What all epochs gave for one contender by one clock, in microseconds a step.

    Attributes:
        step: Median of the contender.
        overhead: Median time in addition to the loop.
        quartiles: The first and the third of the same.
        ratio: Median of the contender's time divided by the loop's.
    """

    step: float
    overhead: float
    quartiles: tuple[float, float]
    ratio: float


def main() -> int:
    arguments = read_arguments()
    torch.set_num_threads(1)
    several = arguments.processes > 1
    found = on_several_processes() if several else contenders()
    chosen = [one for one in found if any(text.lower() in one.name.lower() for text in arguments.only)]
    if not chosen:
        print(f"--only: no contender has any of {arguments.only} in its name", file=sys.stderr)
        return 2
    if several and arguments.worker is None:
        measured = measure_on_several(chosen, arguments)
    else:
        measured = measure(chosen, arguments.rounds, arguments.epochs, arguments.steps)
    if arguments.worker is not None:
        if RANK == 0:
            torch.save(measured, arguments.worker)
        return 0
    figures = {
        contender.name: {clock: summarize(*times.unbind(-1)[index].unbind(1)) for index, clock in enumerate(CLOCKS)}
        for contender, times in zip(chosen, measured, strict=True)
    }
    written = table(chosen, {name: by_clock[arguments.clock] for name, by_clock in figures.items()}, arguments)
    print(written)
    if arguments.write:
        write_between(PAGE, "overhead of processes" if several else "overhead", written)
    broken = [c.name for c in chosen if c.bar is not None and figures[c.name][arguments.clock].overhead > c.bar]
    if broken:
        print(f"over the limit: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken and arguments.check else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="runs of each contender (10)")
    parser.add_argument("--steps", type=int, default=2000, help="steps per epoch (2000)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs per run; the last is not measured (3)")
    parser.add_argument(
        "--clock", choices=CLOCKS[:-1], default="wall", help="wall time, or CPU time without other processes (wall)"
    )
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""], help="contenders with TEXT in their name")
    parser.add_argument("--processes", type=int, default=1, help="of each run, over gloo (1)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if torch-hal is over a limit")
    parser.add_argument("--write", action="store_true", help="write the table to docs/performance.md")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure_on_several(chosen: list[Contender], arguments: argparse.Namespace) -> list[Tensor]:
    """As :func:`measure`, in process 0 of several; each front end in its own processes, round after round."""
    order, draw = list(dict.fromkeys(one.train for one in chosen)), random.Random(0)
    measured: dict[str, list[Tensor]] = {one.name: [] for one in chosen}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "measured.pt")
        for number in range(arguments.rounds):
            draw.shuffle(order)
            for train in order:
                names = [one.name for one in chosen if one.train is train]
                own = ["--rounds", 1, "--only", *names, "--worker", file]
                said = run_ranks([Path(__file__).resolve(), *sys.argv[1:], *own], arguments.processes)
                if said:
                    raise SystemExit(said)
                for name, times in zip(names, torch.load(file), strict=True):
                    measured[name].append(times)
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    return [torch.cat(times) for times in measured.values()]


def measure(chosen: list[Contender], rounds: int, epochs: int, steps: int) -> list[Tensor]:
    """For each contender, microseconds a step: of shape ``(epochs measured, 2, clocks)``, its own before the loop's."""
    for contender in chosen:
        run(contender, 2, 50)
    # Imported modules are excluded from later garbage collections, so that none slows another contender down.
    gc.collect()
    gc.freeze()
    order, draw = list(range(len(chosen))), random.Random(0)
    measured: list[list[Tensor]] = [[] for _ in chosen]
    for number in range(rounds):
        draw.shuffle(order)
        for index in order:
            measured[index].append(run(chosen[index], epochs, steps))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return [torch.cat(times) for times in measured]


def run(contender: Contender, epochs: int, steps: int) -> Tensor:
    """Let it train once; its times, of shape ``(epochs - 1, 2, clocks)``."""
    size = None if PROCESSES == 1 else 1
    task = Task(epochs, steps, contender.loop, RANK, PROCESSES, is_list=contender.is_list, batch_size=size)
    gc.collect()
    with silence():
        network = contender.train(task)
    if not torch.equal(own_numbers(network), task.expected):
        raise SystemExit(f"{contender.name}: its parameters are not bit for bit those of the loop by hand")
    return torch.stack(task.times(), dim=1)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Bars are drawn and warnings given, but nowhere."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def summarize(contender: Tensor, loop: Tensor) -> Figures:
    first, middle, third = torch.quantile(contender - loop, torch.tensor([0.25, 0.5, 0.75], dtype=loop.dtype)).tolist()
    return Figures(
        step=contender.quantile(0.5).item(),
        overhead=middle,
        quartiles=(first, third),
        ratio=(contender / loop).quantile(0.5).item(),
    )


def table(chosen: list[Contender], figures: dict[str, Figures], arguments: argparse.Namespace) -> str:
    """As Markdown."""
    epochs = arguments.rounds * (arguments.epochs - 1)
    has_bar = any(contender.bar is not None for contender in chosen)
    where = "" if arguments.processes == 1 else f" on {arguments.processes} processes"
    lines = [
        f"Microseconds a step{where} by the {arguments.clock} clock, medians of {epochs} epochs of "
        f"{arguments.steps:,} steps ({os.cpu_count()} cores, {versions('torch', 'lightning', 'accelerate')}, "
        f"Python {platform.python_version()}, {date.today().isoformat()}):",
        "",
        "| | step | beyond the loop | quartiles | ratio |" + " limit |" * has_bar,
        "|---|---:|---:|---:|---:|" + "---:|" * has_bar,
    ]
    for contender in chosen:
        found = figures[contender.name]
        low, high = found.quartiles
        bar = "" if contender.bar is None else f"{contender.bar:.0f}"
        lines.append(
            f"| {contender.name} | {found.step:.0f} | {found.overhead:+.1f} | {low:+.0f} to {high:+.0f} | "
            f"{found.ratio:.2f} |" + f" {bar} |" * has_bar
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
