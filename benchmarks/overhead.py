"""Microseconds a step that each front end takes beyond the loop written by hand.

    python benchmarks/overhead.py --check

One process trains the same tiny network on the same batches with each front end that is installed. A round visits them
in random order, each next to a run of the hand-written loop; the figure is the median over rounds of the difference.
What the machine does to both runs of a pair cancels out; the row "plain loop", the loop against itself, shows what does
not. Every run must end with the bits of the hand-written loop's parameters.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
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
from pathlib import Path
from typing import Any

import torch
from overhead_contenders import CLOCKS, Contender, Task, Times, contenders
from torch import Tensor, nn


@dataclass(frozen=True)
class Pair:
    """Microseconds a step, by clock, of a contender and of the hand-written loop that ran next to it."""

    contender: Times
    baseline: Times


@dataclass(frozen=True)
class Summary:
    """What the rounds gave for one contender by one clock, in microseconds a step.

    Attributes:
        step: Median over rounds of the whole step.
        overhead: Median over rounds of what the contender takes beyond the loop beside it.
        quartiles: The first and the third of the same.
        overhead_of_minima: The contender's best round less the loop's best round.
        ratio: Median over rounds of the contender divided by the loop beside it.
    """

    step: float
    overhead: float
    quartiles: tuple[float, float]
    overhead_of_minima: float
    ratio: float


def main() -> int:
    """Measure, print, and say whether the bars hold."""
    arguments = read_arguments()
    torch.set_num_threads(1)
    chosen = [one for one in contenders() if any(word.lower() in one.name.lower() for word in arguments.only)]
    if not chosen:
        print(f"--only: no contender has any of {arguments.only} in its name", file=sys.stderr)
        return 2
    pairs = measure(chosen, arguments.rounds, arguments.epochs, arguments.steps)
    summaries = {name: {clock: summarize(found, clock) for clock in CLOCKS} for name, found in pairs.items()}
    print_table(chosen, {name: by_clock[arguments.clock] for name, by_clock in summaries.items()}, arguments)
    if arguments.json is not None:
        report = conditions(arguments) | {"contenders": [as_json(one, summaries, pairs) for one in chosen]}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    broken = [c.name for c in chosen if c.bar is not None and summaries[c.name][arguments.clock].overhead > c.bar]
    if broken:
        print(f"over the bar: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken and arguments.check else 0


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=15, help="pairs of runs for each contender (15)")
    parser.add_argument("--steps", type=at_least(1), default=1000, help="steps an epoch (1000)")
    parser.add_argument("--epochs", type=at_least(2), default=4, help="epochs a run, the last not measured (4)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: without what others take of it (wall)")
    parser.add_argument("--only", nargs="+", metavar="WORD", default=[""], help="contenders with a WORD in their name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    parser.add_argument("--check", action="store_true", help="exit code 1 where torch-hal is over a bar")
    return parser.parse_args()


def at_least(low: int) -> Callable[[str], int]:
    """Reads a whole number from ``low``."""

    def number(word: str) -> int:
        if int(word) < low:
            raise argparse.ArgumentTypeError(f"{word}: must be at least {low}")
        return int(word)

    return number


# -- measuring -----------------------------------------------------------------------------------------------------


def measure(chosen: list[Contender], rounds: int, epochs: int, steps: int) -> dict[str, list[Pair]]:
    """The pairs of all rounds, by contender, after a short one of each that is not measured."""
    for contender in chosen:
        run_pair(contender, 2, 50, baseline_first=True)
    # What was imported stays out of every later collection: nobody pays for another's modules.
    gc.collect()
    gc.freeze()
    order, draw = list(chosen), random.Random(0)
    pairs: dict[str, list[Pair]] = {contender.name: [] for contender in chosen}
    for number in range(rounds):
        draw.shuffle(order)
        for contender in order:
            pairs[contender.name].append(run_pair(contender, epochs, steps, baseline_first=draw.random() < 0.5))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return pairs


def run_pair(contender: Contender, epochs: int, steps: int, baseline_first: bool) -> Pair:
    """A run of the contender and one of its hand-written loop, next to each other."""
    trains = (contender.baseline, contender.train)
    first, second = [run(train, epochs, steps) for train in (trains if baseline_first else trains[::-1])]
    if not torch.equal(first[1], second[1]):
        raise SystemExit(f"{contender.name}: its parameters are not bit for bit those of the hand-written loop")
    times = (first[0], second[0])
    baseline, mine = times if baseline_first else times[::-1]
    return Pair(contender=mine, baseline=baseline)


def run(train: Callable[[Task], nn.Module], epochs: int, steps: int) -> tuple[Times, Tensor]:
    """Microseconds a step (the median over epochs), and all parameters at the end."""
    task = Task(epochs, steps)
    gc.collect()
    with silence():
        network = train(task)
    epoch_times = task.times()
    times = {clock: statistics.median(epoch[clock] for epoch in epoch_times) for clock in CLOCKS}
    return times, nn.utils.parameters_to_vector(network.parameters()).detach()


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Bars are drawn and warnings given, but nowhere."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield


# -- reporting -----------------------------------------------------------------------------------------------------


def summarize(pairs: list[Pair], clock: str) -> Summary:
    """The figures of one contender by one clock."""
    mine, loop = [pair.contender[clock] for pair in pairs], [pair.baseline[clock] for pair in pairs]
    differences = [pair.contender[clock] - pair.baseline[clock] for pair in pairs]
    quartiles = statistics.quantiles(differences, n=4, method="inclusive") if len(pairs) > 1 else differences * 3
    return Summary(
        step=statistics.median(mine),
        overhead=quartiles[1],
        quartiles=(quartiles[0], quartiles[2]),
        overhead_of_minima=min(mine) - min(loop),
        ratio=statistics.median(pair.contender[clock] / pair.baseline[clock] for pair in pairs),
    )


def print_table(chosen: list[Contender], summaries: dict[str, Summary], arguments: argparse.Namespace) -> None:
    """A line for each contender, in 80 columns."""
    print(f"µs a step by the {arguments.clock} clock: {arguments.rounds} rounds of {arguments.steps} steps an epoch\n")
    print(f"{'':30}{'step':>6}{'over loop':>11}{'quartiles':>15}{'ratio':>7}{'bar':>7}")
    for contender in chosen:
        found = summaries[contender.name]
        low, high = found.quartiles
        bar = "" if contender.bar is None else f"<= {contender.bar:.0f}"
        spread = f"{low:+.0f} to {high:+.0f}"
        print(f"{contender.name:30}{found.step:6.0f}{found.overhead:+11.1f}{spread:>15}{found.ratio:7.2f}{bar:>7}")


def conditions(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the figures hold for."""
    wanted = ("torch", "torch-hal", "lightning", "accelerate")
    installed = {dist.name: dist.version for dist in importlib.metadata.distributions()}
    return {
        "python": platform.python_version(),
        "versions": {name: installed[name] for name in wanted if name in installed},
        **{name: getattr(arguments, name) for name in ("rounds", "epochs", "steps")},
    }


def as_json(
    contender: Contender, summaries: dict[str, dict[str, Summary]], pairs: dict[str, list[Pair]]
) -> dict[str, Any]:
    """Everything known of one contender."""
    return {
        "name": contender.name,
        "bar": contender.bar,
        "summary": {clock: asdict(summary) for clock, summary in summaries[contender.name].items()},
        "rounds": [asdict(pair) for pair in pairs[contender.name]],
    }


if __name__ == "__main__":
    sys.exit(main())
