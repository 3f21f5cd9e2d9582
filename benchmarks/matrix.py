"""The matrix strategy x precision x (Runtime, Trainer) x (1, 2 processes), on the CPU and on each real engine.

    python benchmarks/matrix.py --write docs/strategies.md
    python benchmarks/matrix.py --only fsdp bf16-mixed Trainer 2

A cell works, or an error names what is wrong before any process starts; anything else is a failure, with exit code 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import NamedTuple

from matrix_worker import FRONT_ENDS, PRECISIONS, RANKS, Cell, judge
from pages import versions, write_between

from core.discovery.registry import Registry

WORKER = str(Path(__file__).with_name("matrix_worker.py"))
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_RANK", "NODE_RANK", "MASTER_", "TORCHELASTIC_", "HOROVOD_")
ARGUMENTS = ("CORE_ACCELERATOR", "CORE_STRATEGY", "CORE_DEVICES", "CORE_NUM_NODES", "CORE_PRECISION")
LIMIT = 120
"""Seconds for the processes of a cell."""
SETTLE_SECONDS = 5.0
"""How long processes may take to end after those that they served have."""
MARK = "MATRIX_CELL"
"""A variable that all processes of a cell inherit, whatever starts them."""

COMMANDS: Mapping[str, Sequence[str]] = {
    "itself": (),
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node={ranks}"),
    "horovodrun": (
        "-m",
        "horovod.runner.launch",
        "--gloo",
        "--network-interfaces",
        "lo",
        "-np",
        "{ranks}",
        sys.executable,
    ),
}
"""How the processes of a cell are started."""

LEGEND = """\
*yes*: trains with both front ends, on one process and on two. *no*: refused, for the reason below. Names with
`_find_unused_parameters_true` or `_false` have the same rows as the names without.
"""


class Outcome(NamedTuple):
    """What became of a cell: ``"worked"``, ``"refused"`` or ``"failed"``, and why."""

    kind: str
    text: str = ""


Found = Mapping[Cell, Outcome]


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="strategies, precisions, Runtime, Trainer, 1, 2")
    parser.add_argument("--jobs", type=int, default=2, help="cells to run at the same time (default 2)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table between its markers in PAGE")
    options = parser.parse_args()
    for name in [name for name in os.environ if name in ARGUMENTS or name.startswith(RANK_VARIABLES)]:
        del os.environ[name]
    os.environ["OMP_NUM_THREADS"] = "1"
    found: dict[Cell, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        for cells in chosen(options.only):
            for cell, outcome in outcomes(cells, Path(folder), options.jobs):
                found[cell] = outcome
                print(f"{outcome.kind:8} {cell!s:60} {outcome.text.strip().partition(chr(10))[0]}"[:240], flush=True)
    print(f"\n{table(found)}")
    failed = [cell for cell, outcome in found.items() if outcome.kind == "failed"]
    for cell in failed:
        print(f"\n{cell}: {found[cell].text}")
    if options.write:
        made_with = versions("torch", "deepspeed", "horovod")
        made = f"Made by `benchmarks/matrix.py` on {date.today()}, on the CPU, with {made_with}."
        write_between(options.write, "matrix", f"{LEGEND}\n{table(found)}\n{made}")
    return 1 if failed or not found else 0


def chosen(only: Sequence[str]) -> list[list[Cell]]:
    """The chosen cells of each distribution's strategies; of an axis without a choice, all."""
    names: dict[str, list[str]] = {}
    for row in Registry.read(os.environ).rows("strategy"):
        if row.state == "installed" and ("_find_unused_parameters_" not in row.name or row.name in only):
            names.setdefault(row.distribution, []).append(row.name)
    ranks = [str(number) for number in RANKS]
    axes: list[Sequence[str]] = [[*itertools.chain(*names.values())], PRECISIONS, FRONT_ENDS, ranks]
    if unknown := set(only).difference(*axes):
        raise SystemExit(f"--only {' '.join(unknown)}: neither strategy, precision, front end nor number of processes")
    wanted = [[name for name in axis if name in only] or axis for axis in axes]
    return [
        [
            Cell(strategy, precision, front_end, int(number))
            for strategy, precision, front_end, number in itertools.product(*wanted)
            if strategy in group
        ]
        for group in names.values()
    ]


# -- running ---------------------------------------------------------------------------------------------------------


def outcomes(cells: Sequence[Cell], folder: Path, jobs: int) -> Iterator[tuple[Cell, Outcome]]:
    """What becomes of the cells of one distribution, as soon as it is known."""
    if not cells:
        return
    answers = folder / "resolved.json"
    # One process, in which the engine of no other distribution is imported.
    resolved = [sys.executable, WORKER, "resolve", str(answers), *map(json.dumps, cells)]
    subprocess.run(resolved, check=True, stdout=subprocess.DEVNULL)
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {}
        for cell, (kind, text) in zip(cells, json.loads(answers.read_text("utf-8")), strict=True):
            if kind in COMMANDS:
                waiting[pool.submit(train, cell, kind, folder)] = cell
            else:
                yield cell, Outcome(kind, text)
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def train(cell: Cell, start: str, folder: Path) -> Outcome:
    """Run the cell's processes, see all of them end, and judge what they reported."""
    place = folder / "_".join(map(str, cell))
    place.mkdir()
    launcher = [part.format(ranks=cell.ranks) for part in COMMANDS[start]]
    with (place / "output").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *launcher, WORKER, "train", str(place), json.dumps(cell)],
            env={**os.environ, MARK: str(place)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        wrong = []
        try:
            if code := process.wait(LIMIT):
                wrong.append(f"exit code {code}")
        except subprocess.TimeoutExpired:
            wrong.append(f"it ran for {LIMIT} s")
            process.kill()
            process.wait()
    until = time.monotonic() + SETTLE_SECONDS
    while (left := living(place)) and time.monotonic() < until:
        time.sleep(0.05)
    wrong += [f"processes left behind: {left}"] if left else []
    while left := living(place):
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
    wrong += judge(cell, [json.loads(path.read_text("utf-8")) for path in sorted(place.glob("rank*.json"))])
    if wrong:
        return Outcome("failed", "; ".join(wrong) + "\n" + (place / "output").read_text(errors="replace")[-6000:])
    return Outcome("worked")


def living(place: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={place}\0".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


# -- the table -------------------------------------------------------------------------------------------------------


def table(found: Found) -> str:
    """In Markdown, with a note for each reason of a refusal."""
    notes: dict[str, int] = {}
    precisions = [precision for precision in PRECISIONS if any(cell.precision == precision for cell in found)]
    lines = [f"| strategy | {' | '.join(precisions)} |", "|---" * (len(precisions) + 1) + "|"]
    for strategy in dict.fromkeys(cell.strategy for cell in sorted(found)):
        entries = [_entry(strategy, precision, found, notes) for precision in precisions]
        lines.append(f"| `{strategy}` | {' | '.join(entries)} |")
    return "\n".join([*lines, "", *(f"{number}. {reason}" for reason, number in notes.items())]) + "\n"


def _entry(strategy: str, precision: str, found: Found, notes: dict[str, int]) -> str:
    here = {cell[2:]: outcome for cell, outcome in found.items() if cell[:2] == (strategy, precision)}
    reasons = []
    for outcome in here.values():
        if outcome.kind == "refused":
            reason = outcome.text.strip().splitlines()[0]
            reasons.append(reason.replace(repr(strategy), "…").replace(repr(precision), "…").replace("|", "\\|"))
    marks = ", ".join(str(notes.setdefault(reason, len(notes) + 1)) for reason in dict.fromkeys(reasons))
    mark = f"<sup>{marks}</sup>" if marks else ""
    if any(outcome.kind == "failed" for outcome in here.values()):
        return "**failed**" + mark
    worked = {place for place, outcome in here.items() if outcome.kind == "worked"}
    return (_where(worked, set(here)) if worked else "no") + mark


def _where(worked: set[tuple[str, int]], asked: set[tuple[str, int]]) -> str:
    if worked == asked:
        return "yes"
    for ranks in RANKS:
        if worked == {place for place in asked if place[1] == ranks}:
            return f"{ranks} process" + ("es" if ranks > 1 else "")
    for front_end in FRONT_ENDS:
        if worked == {place for place in asked if place[0] == front_end}:
            return front_end
    return ", ".join(f"{front_end} on {ranks}" for front_end, ranks in sorted(worked))


if __name__ == "__main__":
    sys.exit(main())
