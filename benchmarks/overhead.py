"""Microseconds a step that each front end takes beyond the loop written by hand.

    python benchmarks/overhead.py --rounds 20 --check

One process trains the same tiny network on the same batches with each front end that is installed. A round visits them
in random order, each next to a run of the hand-written loop; the figure is the median over rounds of the difference.
What a machine does to both runs of a pair so cancels out; the row "plain loop", the loop against itself, shows what does
not. Every run must end with the bits of the hand-written loop's parameters.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import platform
import random
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from overhead_contenders import Contender, Task, contenders
from torch import Tensor, nn

CLOCKS = ("wall", "cpu")


@dataclass(frozen=True)
class Pair:
    """Microseconds a step of a contender and of the baseline run beside it, by each clock."""

    contender: tuple[float, float]
    baseline: tuple[float, float]


@dataclass(frozen=True)
class Summary:
    """What the rounds gave for one contender by one clock, in microseconds a step.

    Attributes:
        step: Median of the contender.
        overhead: Median over rounds of the contender less the baseline of the same round.
        quartiles: The first and third of the same.
        overhead_of_minima: The contender's best round less the baseline's.
        ratio: Median over rounds of the contender divided by the baseline.
    """

    step: float
    overhead: float
    quartiles: tuple[float, float]
    overhead_of_minima: float
    ratio: float


def main() -> int:
    """Measure, print, and say whether the bars hold."""
    arguments = read_arguments()
    prepare_process()
    chosen = [one for one in contenders() if any(word.lower() in one.name.lower() for word in arguments.only or [""])]
    if not chosen:
        print(f"--only: no contender's name holds any of {arguments.only}", file=sys.stderr)
        return 2
    pairs = measure(chosen, arguments.rounds, arguments.epochs, arguments.steps)
    summaries = {
        one.name: {clock: summarize(pairs[one.name], index) for index, clock in enumerate(CLOCKS)} for one in chosen
    }
    broken = [
        one.name
        for one in chosen
        if one.bar is not None and summaries[one.name][arguments.clock].overhead > one.bar
    ]
    print_table(chosen, {name: by_clock[arguments.clock] for name, by_clock in summaries.items()}, arguments)
    if arguments.json is not None:
        report = {**conditions(arguments), "contenders": [as_json(one, summaries[one.name], pairs[one.name]) for one in chosen]}
        arguments.json.write_text(json.dumps(report, indent=1))
    if broken:
        print(f"over its bar: {'; '.join(broken)}", file=sys.stderr)
    return 1 if broken and arguments.check else 0


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="pairs of runs for each contender (20)")
    parser.add_argument("--steps", type=int, default=1000, help="steps an epoch (1000)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs a run; the last is not measured (3)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu leaves out what other processes take (wall)")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="contenders with one of these words in their names")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    parser.add_argument("--check", action="store_true", help="exit code 1 where torch-hal is over a bar")
    return parser.parse_args()


def prepare_process() -> None:
    """One thread, and no words from the front ends."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def measure(chosen: list[Contender], rounds: int, epochs: int, steps: int) -> dict[str, list[Pair]]:
    """All rounds, after one short run of each contender that is not measured."""
    for contender in chosen:
        run_pair(contender, epochs=2, steps=50, baseline_first=True)
    # What was imported stays out of every later collection, so that no contender pays for another's modules.
    gc.collect()
    gc.freeze()
    order, draw = list(chosen), random.Random(0)
    pairs: dict[str, list[Pair]] = {contender.name: [] for contender in chosen}
    for number in range(rounds):
        draw.shuffle(order)
        for contender in order:
            show(f"round {number + 1}/{rounds}: {contender.name}")
            pairs[contender.name].append(run_pair(contender, epochs, steps, baseline_first=draw.random() < 0.5))
    show("")
    return pairs


def run_pair(contender: Contender, epochs: int, steps: int, baseline_first: bool) -> Pair:
    """A run of the contender and one of its baseline, next to each other."""
    runs = [contender.baseline, contender.train]
    times, parameters = zip(
        *(run(train, epochs, steps) for train in (runs if baseline_first else reversed(runs))), strict=True
    )
    if not torch.equal(*parameters):
        raise SystemExit(f"{contender.name}: its parameters are not bit for bit those of the hand-written loop")
    return Pair(baseline=times[not baseline_first], contender=times[baseline_first])


def run(train: Callable[[Task], nn.Module], epochs: int, steps: int) -> tuple[tuple[float, float], Tensor]:
    """Microseconds a step by each clock (the median over epochs), and the parameters at the end."""
    task = Task(epochs, steps)
    gc.collect()
    with silence():
        network = train(task)
    wall, cpu = zip(*task.times(), strict=True)
    return (statistics.median(wall), statistics.median(cpu)), nn.utils.parameters_to_vector(network.parameters())


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Progress bars are drawn, but nowhere."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield


def summarize(pairs: list[Pair], clock: int) -> Summary:
    """The figures of one contender by one clock, an index of :data:`CLOCKS`."""
    contender = [pair.contender[clock] for pair in pairs]
    baseline = [pair.baseline[clock] for pair in pairs]
    differences = [mine - other for mine, other in zip(contender, baseline, strict=True)]
    first, middle, third = statistics.quantiles(differences, n=4, method="inclusive") if len(pairs) > 1 else differences * 3
    return Summary(
        step=statistics.median(contender),
        overhead=middle,
        quartiles=(first, third),
        overhead_of_minima=min(contender) - min(baseline),
        ratio=statistics.median(mine / other for mine, other in zip(contender, baseline, strict=True)),
    )


def print_table(chosen: list[Contender], summaries: dict[str, Summary], arguments: argparse.Namespace) -> None:
    """One line a contender, in 80 columns."""
    print(f"µs a step, {arguments.clock} clock; medians of {arguments.rounds} rounds, {arguments.steps} steps an epoch")
    print(f"{'':30}{'step':>7}{'over the loop':>15}{'quartiles':>14}{'ratio':>7}{'bar':>6}")
    for contender in chosen:
        found = summaries[contender.name]
        quartiles = "{:+.0f} … {:+.0f}".format(*found.quartiles)
        bar = "" if contender.bar is None else f"{contender.bar:+.0f}"
        print(f"{contender.name:30}{found.step:7.0f}{found.overhead:+15.1f}{quartiles:>14}{found.ratio:7.2f}{bar:>6}")


def conditions(arguments: argparse.Namespace) -> dict[str, object]:
    """Under what the figures were taken."""
    packages = ("torch", "torch-hal", "lightning", "accelerate")
    return {
        "rounds": arguments.rounds,
        "epochs": arguments.epochs,
        "steps": arguments.steps,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages if is_installed(name)},
    }
