"""Trains with every strategy on two processes, and compares the results with a plain loop and with DDP.

    python benchmarks/compare.py --check

Each strategy trains an MLP on scikit-learn's digits and a transformer of four layers on *Paradise Lost* (see
`tasks.py`), on its real engine: with the Runtime on the global batches of the plain loop, and then with the Trainer for
two epochs, which new processes also resume after the first. `compare_roster.py` has the expected results.

Needs scikit-learn and the packages of the chosen strategies; the text comes from the package index.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from compare_figures import Figures, broken, figures_of, table
from compare_roster import DDP, PLAIN, PLAIN_ADAM, ROSTER, Entry
from pages import write_between
from processes import run_ranks
from tasks import TASKS

WORKER = Path(__file__).with_name("compare_worker.py")


def main() -> int:
    """Train, print the table, and say whether every bar holds."""
    arguments = read_arguments()
    chosen = choose(arguments.only)
    for name in arguments.tasks:
        TASKS[name].items()  # what must be downloaded is, before processes need it
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for entry in chosen:
            began = time.monotonic()
            folder = Path(scratch) / f"{ROSTER.index(entry)}"
            folder.mkdir()
            refusal, failure = train(entry, folder, arguments)
            found[entry.name] = figures_of(entry, folder, found) if not refusal and not failure else Figures()
            found[entry.name].refusal, found[entry.name].failure = refusal, failure
            if (folder / "first").exists():
                shutil.rmtree(folder / "first")
            print(f"{entry.name}: {time.monotonic() - began:.0f} s", *broken(entry, found), sep="\n  ", file=sys.stderr)
    text = table(chosen, found)
    print(text)
    if arguments.write is not None:
        write_between(arguments.write, "training", text)
    faulty = [entry.name for entry in chosen if broken(entry, found)]
    print(f"unexpected results: {', '.join(faulty) or 'none'}", file=sys.stderr)
    return 1 if faulty and arguments.check else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""], help="strategies with TEXT in their name")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="tasks to train (all)")
    parser.add_argument("--steps", type=int, help="steps of the loops (280 for digits, 200 for the text)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table between its markers in PAGE")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a result is unexpected")
    return parser.parse_args()


def choose(texts: list[str]) -> list[Entry]:
    """The chosen entries, preceded by those that they are compared with."""
    chosen = [entry for entry in ROSTER if any(text in entry.name for text in texts)]
    compared = {PLAIN, DDP} | ({PLAIN_ADAM} if any(entry.adam for entry in chosen) else set())
    return [entry for entry in ROSTER if entry in chosen or entry.name in compared]


def train(entry: Entry, folder: Path, arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    """Let its processes run; returns why the strategy was refused, or what its processes said where they failed."""
    tasks = [f"{name}={arguments.steps or TASKS[name].steps}" for name in arguments.tasks]
    for phase in ("first", "resumed") if entry.strategy else ("first",):
        command = [WORKER, entry.name, phase, folder, *tasks]
        ranks = 2 if entry.horovodrun else entry.machines
        said = run_ranks(command, ranks, entry.machines, horovodrun=entry.horovodrun)
        refused = folder / "refused.json"
        if said and refused.exists():
            return str(json.loads(refused.read_text())), None
        if said:
            return None, f"{phase}: processes failed, or took too long; they said\n{said}"
    return None, None


if __name__ == "__main__":
    sys.exit(main())
