"""Measures a save and a load against torch's own, and a save and ``latest`` in a folder of many checkpoints.

    python benchmarks/saves.py                                    # 315 MB, and folders of up to 10,000 checkpoints
    python benchmarks/saves.py --write docs/performance.md

``torch.save`` syncs its file to disk, as torch-hal does. The ways take turns in each round, so that a busy machine
affects them alike; the ratio is the median of those of the rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
from async_save import state_of
from pages import write_between

from core.checkpoints import ShardedCheckpointIO, TorchCheckpointIO, latest
from core.checkpoints.directories import set_number

IO = TorchCheckpointIO()
SMALL = {"weight": torch.zeros(4)}


def torch_save(state: dict[str, Any], path: Path) -> None:
    """One file by torch alone."""
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def seconds(action: Callable[[], object]) -> float:
    """How long it takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def in_turn(
    ways: dict[str, Callable[[], object]], rounds: int, prepare: Callable[[], object]
) -> dict[str, list[float]]:
    """Seconds of each way in each round, of which the first is not counted; every second round in reverse order."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            prepare()
            taken = seconds(ways[name])
            if number:
                found[name].append(taken)
    return found


def against_torch(megabytes: int, rounds: int, folder: Path) -> list[str]:
    """The rows of a table."""
    state, path = state_of(megabytes), folder / "c"

    def prepare() -> None:
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
        os.sync()

    saves: dict[str, Callable[[], object]] = {
        "torch.save, synced": lambda: torch_save(state, path),
        "save, `'torch'`": lambda: IO.save_checkpoint(state, path),
        "save, `'sharded'`": lambda: ShardedCheckpointIO().save_checkpoint(state, path),
    }
    rows = _rows(in_turn(saves, rounds, prepare))
    torch_save(state, folder / "theirs")
    IO.save_checkpoint(state, folder / "ours")
    loads: dict[str, Callable[[], object]] = {
        "torch.load": lambda: torch.load(folder / "theirs", weights_only=True),
        "load, verified": lambda: IO.load_checkpoint(folder / "ours"),
    }
    return [*rows, *_rows(in_turn(loads, rounds, lambda: None))]


def _rows(figures: dict[str, list[float]]) -> list[str]:
    base = next(iter(figures.values()))
    return [
        f"| {name} | {statistics.median(times):.2f} | "
        f"{statistics.median(one / other for one, other in zip(times, base, strict=True)):.2f} |"
        for name, times in figures.items()
    ]


_IN_FOLDER = """
import sys, time, torch
from pathlib import Path
from core.checkpoints import TorchCheckpointIO, latest
folder, found = Path(sys.argv[1]), []
save = lambda name: TorchCheckpointIO().save_checkpoint({"weight": torch.zeros(4)}, folder / name)
TorchCheckpointIO().save_checkpoint({}, folder.parent / "imports")
for action in (lambda: latest(folder), lambda: save("a"), lambda: latest(folder), lambda: save("b")):
    begin = time.perf_counter(); action(); found.append(time.perf_counter() - begin)
print(*found)
"""


def among_many(number: int, rounds: int, folder: Path) -> str:
    """Measure a folder with ``number`` small checkpoints, in a separate process for each round; returns a table row."""
    many = folder / f"{number}"
    many.mkdir()
    IO.save_checkpoint(SMALL, folder / "one")
    for index in range(number):
        place = many / f"step={index}.ckpt"
        shutil.copyfile(folder / "one", place)
        set_number(place, index + 1)
    assert latest(many) == (many / f"step={number - 1}.ckpt" if number else None)
    taken = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", _IN_FOLDER, many], capture_output=True, text=True, check=True)
        taken.append([float(each) for each in done.stdout.split()])
    shutil.rmtree(many)
    return (
        f"| {number:,} | "
        + " | ".join(f"{1000 * statistics.median(row):.0f}" for row in zip(*taken, strict=True))
        + " |"
    )


def report(megabytes: int, rounds: int, numbers: Sequence[int], folder: Path) -> str:
    """Both tables, as Markdown."""
    where = f"{os.cpu_count()} cores, torch {torch.__version__}, {date.today().isoformat()}, medians of {rounds} rounds"
    return "\n".join(
        [
            f"A state of {megabytes} MB in 100 tensors, on the disk of a virtual machine ({where}):",
            "",
            "| | seconds | of torch's |",
            "|---|---|---|",
            *against_torch(megabytes, rounds, folder),
            "",
            "Milliseconds in a folder with many small checkpoints, of one process:",
            "",
            "| checkpoints there | first `latest` | save | next `latest` | next save |",
            "|---|---|---|---|---|",
            *(among_many(number, rounds, folder) for number in numbers),
        ]
    )


def main() -> None:
    """Measure, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=315)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--checkpoints", type=int, nargs="+", default=[0, 1000, 10_000])
    parser.add_argument("--directory", type=Path, help="where to save; a temporary directory by default")
    parser.add_argument("--write", type=Path, help="the page whose tables are replaced")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        text = report(options.megabytes, options.rounds, options.checkpoints, Path(folder))
    sys.stdout.write(f"{text}\n")
    if options.write:
        write_between(options.write, "saves", text)


if __name__ == "__main__":
    main()
