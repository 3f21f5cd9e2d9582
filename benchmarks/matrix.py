"""The matrix strategy x precision x (Runtime, Trainer) x (1, 2 processes), on the CPU and on each real engine.

A cell works, or is refused by name before any process starts; anything else is a failure, with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import attrs
from matrix_cells import FRONT_ENDS, PRECISIONS, RANKS, Cell, Outcome, cells_of
from matrix_page import summary, write_page
from matrix_processes import outcomes

from core.discovery.registry import Registry

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_RANK", "NODE_RANK", "MASTER_", "TORCHELASTIC_", "HOROVOD_")
ARGUMENTS = ("CORE_ACCELERATOR", "CORE_STRATEGY", "CORE_DEVICES", "CORE_NUM_NODES", "CORE_PRECISION")


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    options = _options()
    logging.basicConfig(format="%(levelname)s: %(message)s")
    for name in [name for name in os.environ if name in ARGUMENTS or name.startswith(RANK_VARIABLES)]:
        del os.environ[name]
    os.environ["OMP_NUM_THREADS"] = "1"
    strategies = by_distribution(options.all)
    chosen = _chosen(options.only, [name for names in strategies.values() for name in names])
    began = time.monotonic()
    found: dict[Cell, Outcome] = {}
    # No TemporaryDirectory: each forked process would remove it at its end.
    folder = tempfile.mkdtemp(prefix="matrix-")
    try:
        for distribution, names in strategies.items():
            cells = [cell for cell in cells_of(names) if cell in chosen]
            for cell, outcome in outcomes(distribution, cells, Path(folder, distribution), options.jobs, options.limit):
                found[cell] = outcome
                _say(cell, outcome)
    finally:
        shutil.rmtree(folder)
    failed = [cell for cell, outcome in found.items() if outcome.kind == "failed"]
    print(f"\n{summary(found)}")
    counts = Counter(outcome.kind for outcome in found.values())
    summed = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"\n{len(found)} cells in {time.monotonic() - began:.0f} s: {summed}")
    for cell in failed:
        print(f"\n{'=' * 100}\n{cell}: {found[cell].text}\n{'-' * 100}\n{found[cell].output}")
    if options.json:
        rows = [{**attrs.asdict(cell), **attrs.asdict(outcome)} for cell, outcome in sorted(found.items())]
        options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    if options.write:
        write_page(options.write, found)
    return 1 if failed or not found else 0


def by_distribution(everything: bool = True) -> dict[str, list[str]]:
    """The names of all installed strategies, by the distribution that they came with.

    Args:
        everything: Whether names that only set ``find_unused_parameters`` are among them.
    """
    names: dict[str, list[str]] = {}
    for row in Registry.read(os.environ).rows("strategy"):
        if row.state == "installed" and (everything or "_find_unused_parameters_" not in row.name):
            names.setdefault(row.distribution, []).append(row.name)
    return names


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="strategies, precisions, Runtime, Trainer, 1, 2"
    )
    parser.add_argument("--all", action="store_true", help="include names that only set find_unused_parameters")
    parser.add_argument("--jobs", type=int, default=2, help="cells to run at the same time (default 2)")
    parser.add_argument("--limit", type=float, default=90.0, help="time limit per cell in seconds (default 90)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every cell and its outcome to FILE")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table between its markers in PAGE")
    return parser.parse_args()


def _chosen(chosen: list[str], strategies: list[str]) -> set[Cell]:
    """The cells with the ``chosen`` strategies, precisions, front ends and ranks; of each all if none is chosen."""
    axes = [strategies, list(PRECISIONS), list(FRONT_ENDS), [str(number) for number in RANKS]]
    unknown = [name for name in chosen if not any(name in axis for axis in axes)]
    if unknown:
        raise SystemExit(f"--only {' '.join(unknown)}: neither strategy, precision, front end nor number of processes")
    names, precisions, front_ends, ranks = ([name for name in axis if name in chosen] or axis for axis in axes)
    return {cell for cell in cells_of(names, precisions) if cell.front_end in front_ends and str(cell.ranks) in ranks}


def _say(cell: Cell, outcome: Outcome) -> None:
    lines = outcome.text.strip().splitlines()
    print(f"{outcome.kind:8} {cell!s:60} {outcome.seconds:6.1f} s  {lines[0] if lines else ''}"[:240], flush=True)


if __name__ == "__main__":
    sys.exit(main())
