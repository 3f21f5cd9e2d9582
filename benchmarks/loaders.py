"""Measures an epoch of a prepared loader against torch's own with a DistributedSampler, on two processes.

    python benchmarks/loaders.py            # prints the table
    python benchmarks/loaders.py --write    # writes it to docs/performance.md

On one process, ``prepare`` returns your own loader. On two, both ways (and Accelerate's, if it is installed) read the
same items in the same run; they take turns, epoch by epoch, and ratios are medians of those of the rounds. An epoch
includes the start of its workers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from pages import write_between
from processes import run_ranks
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from core import Runtime

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
RANKS = 2


class Items(Dataset[torch.Tensor]):
    """``number`` tensors of ``shape``, each with its index in its first element."""

    def __init__(self, number: int, *shape: int) -> None:
        self.number, self.shape = number, shape

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> torch.Tensor:
        item = torch.zeros(self.shape)
        item.view(-1)[0] = index
        return item


TASKS = {  # whole batches for each process: Accelerate repeats items to fill the last one
    "20,480 items of 8 numbers, batches of 64": (Items(20_480, 8), 64),
    "416 items of 3 x 224 x 224 numbers, batches of 16": (Items(416, 3, 224, 224), 16),
}


def epoch(loader: Any) -> tuple[float, float]:
    """Seconds of an epoch, and the sum of the indices that it gave."""
    begin, total = time.perf_counter(), 0.0
    for batch in loader:
        total += float(batch.flatten(1)[:, 0].double().sum())
    return time.perf_counter() - begin, total


def measure(items: Items, batch_size: int, workers: int, rounds: int, runtime: Runtime) -> dict[str, list[float]]:
    """Seconds of each round, by way; all processes call it."""
    options: dict[str, Any] = {"num_workers": workers}
    loaders = {
        "DistributedSampler": DataLoader(
            items, batch_size, sampler=DistributedSampler(items, RANKS, runtime.process_index, shuffle=False), **options
        ),
        "Runtime": runtime.prepare(DataLoader(items, batch_size, **options)),
    }
    if importlib.util.find_spec("accelerate") is not None:
        from accelerate import Accelerator

        loaders["Accelerate"] = Accelerator(cpu=True).prepare(DataLoader(items, batch_size, **options))
    taken: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(rounds + 1):
        for name in list(loaders)[:: 1 if number % 2 else -1]:
            runtime.wait_for_everyone()
            seconds, total = epoch(loaders[name])
            given = runtime.reduce(torch.tensor(total, dtype=torch.float64), "sum")
            if int(given) != sum(range(items.number)):
                raise SystemExit(f"{name}: other items than those of the data set")
            if number:
                taken[name].append(seconds)
    return taken


def work(rounds: int, file: Path) -> int:
    """One process of the run."""
    torch.set_num_threads(1)
    found = []
    with Runtime(accelerator="cpu", strategy="ddp", devices=RANKS) as runtime:
        runtime.launch()
        for name, (items, batch_size) in TASKS.items():
            for workers in (0, 2):
                found.append((name, workers, measure(items, batch_size, workers, rounds, runtime)))
        if runtime.is_main_process:
            file.write_text(json.dumps(found))
    return 0


def table(found: list[tuple[str, int, dict[str, list[float]]]], rounds: int) -> str:
    """As Markdown."""
    others = list(found[0][2])[1:]
    lines = [
        f"Seconds of an epoch of one of {RANKS} processes, and the ratio to it ({os.cpu_count()} cores, torch "
        f"{torch.__version__}, {date.today().isoformat()}, medians of {rounds} rounds):",
        "",
        f"| | workers | `DistributedSampler` | {' | '.join(others)} |",
        "|" + "---|" * (3 + len(others)),
    ]
    for name, workers, taken in found:
        base = taken["DistributedSampler"]
        ratios = [statistics.median(a / b for a, b in zip(taken[other], base, strict=True)) for other in others]
        cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"| {name} | {workers} | {statistics.median(base):.2f} | {cells} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="write the table to the page")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.rounds, options.worker)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "times.json")
        said = run_ranks([Path(__file__).resolve(), "--rounds", options.rounds, "--worker", file], RANKS)
        if said:
            raise SystemExit(said)
        written = table(json.loads(file.read_text()), options.rounds)
    print(written)
    if options.write:
        write_between(PAGE, "loaders", written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
