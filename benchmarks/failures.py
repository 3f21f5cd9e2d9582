"""Kills, signals and deaths of processes: exit code, seconds until all are gone, what was printed, saved and lost.

    python benchmarks/failures.py kills --minutes 40 --outcomes kills.jsonl --write docs/failures.md
    python benchmarks/failures.py signals --write docs/failures.md
    python benchmarks/failures.py deaths --write docs/failures.md
    python benchmarks/failures.py ways --write docs/failures.md

``kills`` ends processes at random moments and resumes: the cases of ``tests/faults/test_kills.py``. With
``--outcomes`` it goes on where another run stopped, or next to one with other seeds: it skips the seeds that are in
that file, and its table has all of them. ``signals`` sends each kind to each target at each moment of a fit on two
processes of ``ddp_fork``, whose launcher is a third one. ``deaths`` lets rank 1 of three die in each way under each
launcher that can be started here; ``ways`` lets it die at other moments, not start, wait or be stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torch
from attrs import asdict
from pages import write_between

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from faults import dying  # noqa: E402
from faults.killing import SETUPS, Case, Killer, Outcome  # noqa: E402
from faults.signalling import KINDS, MOMENTS, TARGETS, send, start, wait_until_gone  # noqa: E402

MOST_KILLS = 300
LONGEST = 90
"""Characters of a line in a table."""

LAUNCHERS = {
    "`ddp` (script)": ["script"],
    "`ddp_fork`": ["fork"],
    "`ddp_spawn`": ["spawn"],
    "`torch-hal run`": ["run"],
    "torchrun": ["torchrun"],
}
WAYS = {
    "exception": "an exception",
    "memory": "out of memory",
    "exit": "`sys.exit(3)`",
    "abort": "`os.abort()`",
    "kill": "SIGKILL",
}


def kills(minutes: float, seeds: range, path: Path) -> str:
    """The table of the kills in the file, to which it adds as many of these seeds as there is time for."""
    end = time.monotonic() + minutes * 60
    done = read_outcomes(path)
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="kills-", dir=shared) as folder, Killer(Path(folder)) as killer:
        for seed in seeds:
            if seed in done:
                continue
            if time.monotonic() > end:
                break
            case = Case.draw(seed)
            try:
                outcome = killer.run(case)
            except AssertionError as error:
                raise SystemExit(f"{seed} {case}: {error}\n{kills_table(read_outcomes(path))}") from error
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"seed": seed, **asdict(outcome)}) + "\n")
            print(f"{seed} {'ok ' if outcome.is_well else 'BAD'} {case} {outcome}", flush=True)
    return kills_table(read_outcomes(path))


def read_outcomes(path: Path) -> dict[int, Outcome]:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    return {row.pop("seed"): Outcome(**row) for row in rows}


def kills_table(done: dict[int, Outcome]) -> str:
    outcomes: dict[str, list[Outcome]] = {setup: [] for setup in SETUPS}
    for seed, outcome in done.items():
        outcomes[Case.draw(seed).setup].append(outcome)
    columns = [
        "kills",
        "checkpoints",
        "lost",
        "uncommitted found",
        "hung",
        "left over",
        "bit-equal",
        "all gone after, s",
    ]
    rows = ["| strategy or launcher | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    groups = [*((f"`{setup}`", group) for setup, group in outcomes.items()), ("all", list(done.values()))]
    for name, group in groups:
        if group:
            counts = (
                len(group),
                sum(each.commits for each in group),
                sum(each.is_lost for each in group),
                sum(bool(each.uncommitted) for each in group),
                sum(each.is_hung for each in group),
                sum(bool(each.leftovers) for each in group),
                sum(each.is_equal for each in group),
                f"≤ {max(each.gone_seconds for each in group):.1f}",
            )
            rows.append(f"| {name} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(rows)


def signals() -> str:
    rows = ["| signal | to | " + " | ".join(MOMENTS.values()) + " |", "|---|---|" + "---|" * len(MOMENTS)]
    for kind in KINDS:
        for target in TARGETS:
            cells = []
            for moment in MOMENTS:
                with tempfile.TemporaryDirectory(prefix="signals-") as folder:
                    ended = send(kind, target, moment, Path(folder))
                notes = f"{', saved' if ended.is_saved else ''}{'' if ended.are_all_gone else ', HANGS'}"
                cells.append(f"{ended.code}, {ended.seconds:.1f} s{notes}")
                print(f"{kind}, {target}, {moment}: {cells[-1]}", flush=True)
            rows.append(f"| {kind} | {target} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def die(launcher: str, how: str, out: Path) -> tuple[int, float, bool, str]:
    """Exit code, seconds from the death until all were gone, whether all were, and the cause printed last."""
    script, under = str(TESTS / "distributed" / "scripts" / "dying.py"), LAUNCHERS[launcher][0]
    before = {
        "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node=3", "--standalone"],
        "run": ["-m", "core.run", "--devices", "3"],
    }
    name = "torchrun" if under in before else under
    process = start(out, *before.get(under, []), script, name, how, "1")
    code, ended = wait_until_gone(process, out)
    end = time.monotonic()
    died = re.findall(r"dying at ([\d.]+)", (out / "output").read_text())
    cause = dying.cause_in((out / "error").read_text(errors="replace"))
    return code, end - float(died[0]) if died else float("nan"), ended, cause


def cell(line: str) -> str:
    """What was printed, without numbers that differ each time, and without an end that is too long."""
    text = re.sub(r"process \d+", "process …", re.sub(r"^[EW]\d{4} [\d:.]+ +\d+ ", "", line)).replace("|", "\\|")
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()} …"


def deaths() -> str:
    rows = [
        "| launcher | rank 1 ends by | exit code | all gone after, s | cause, at the end |",
        "|---|---|---|---|---|",
    ]
    for launcher in LAUNCHERS:
        for how, shown in WAYS.items():
            with tempfile.TemporaryDirectory(prefix="deaths-") as folder:
                code, seconds, ended, line = die(launcher, how, Path(folder))
            cause = f"`{cell(line)}`" if line else "none"
            rows.append(f"| {launcher} | {shown} | {code} | {seconds:.1f}{'' if ended else ' HANGS'} | {cause} |")
            print(rows[-1], flush=True)
    return "\n".join(rows)


def ways() -> str:
    """The table of launchers and further ways to die, not to come or to be stopped."""
    rows = ["| rank 1 | launcher | exit code | all gone after, s | cause, at the end |", "|---|---|---|---|---|"]
    for way, about in dying.WAYS.items():
        for launcher in dying.LAUNCHERS:
            with tempfile.TemporaryDirectory(prefix="ways-") as folder:
                death = dying.die(launcher, way, Path(folder))
            shown = f"`{cell(death.cause)}`" if death.cause else "none" if death.code else "none: it trains to the end"
            seconds = f"{death.seconds:.1f}{'' if death.are_all_gone else ' HANGS'}"
            name = launcher if launcher == "torchrun" else f"`{launcher}`"
            rows.append(f"| {about.shown} | {name} | {death.code} | {seconds} | {shown} |")
            print(rows[-1], flush=True)
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("kills", "signals", "deaths", "ways"))
    parser.add_argument("--minutes", type=float, default=600.0, help="of kills; then no further one")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of kills")
    parser.add_argument("--last", type=int, default=MOST_KILLS - 1, metavar="SEED", help="of kills")
    parser.add_argument("--outcomes", type=Path, metavar="FILE", help="JSON lines, one for each kill")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between its comments in this page")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, and by its children too, if in the background
    about = f"On {os.cpu_count()} cores, shared with other work, torch {torch.__version__}, {date.today()}."
    with tempfile.TemporaryDirectory(prefix="outcomes-") as folder:
        path = given.outcomes or Path(folder) / "kills.jsonl"
        seeds = range(given.first, given.last + 1)
        made = {"kills": lambda: kills(given.minutes, seeds, path), "signals": signals, "deaths": deaths, "ways": ways}
        text = f"{about}\n\n{made[given.table]()}"
    if given.write is None:
        print(text)
    else:
        write_between(given.write, given.table, text)


if __name__ == "__main__":
    main()
