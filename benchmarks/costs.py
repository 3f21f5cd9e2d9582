"""Measures the bytes that each strategy holds in memory and sends per step, and compares them with formulas.

    python benchmarks/costs.py --write docs/strategies.md
    python benchmarks/costs.py --only fsdp stage_3 --processes 2 4

Runs with all engines installed, as ``nox -s deepspeed`` does. Needs ``unshare`` (util-linux) and ``ip`` (iproute2), and
root or user namespaces: each run has its own network namespace, whose loopback interface counts what its processes
send.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from costs_rows import BYTES, FACTS, ITEMS, LENGTH, ROWS, Row
from pages import versions, write_between
from processes import run_ranks

SECONDS = 300
CLOSE = 0.02
"""The tolerance of a figure, relative to ``P``: padding, packet headers, a barrier."""
BAR = 0.05
"""What the rows in ``BARRED`` may hold beyond 1/n of DDP's memory, relative to DDP's."""
BARRED = ("fsdp", "fsdp_kept", "fsdp_cpu_offload", "stage_3", "stage_3_released")

Counted = dict[str, float]
"""``sent``, ``held``, ``host`` and ``extra``, in bytes."""
Figures = dict[str, dict[int, Counted]]
"""By row and number of processes."""


# -- running ---------------------------------------------------------------------------------------------------------


def unshare() -> list[str]:
    """The prefix that runs a command in its own network namespace; none of its processes outlives it."""
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return command if os.geteuid() == 0 else [*command, "--map-root-user"]


def count(name: str, processes: int) -> Counted:
    """Run one strategy in its own network namespace; return what its processes counted."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "counted.json"
        inside = [sys.executable, __file__, "--only", name, "--processes", str(processes), "--inside", str(out)]
        try:
            subprocess.run([*unshare(), *inside], check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"{name} on {processes} processes: exit code {error.returncode}\n{error.stderr}") from None
        counted: Counted = json.loads(out.read_text())
        return counted


def run_inside(name: str, processes: int, out: Path) -> None:
    """Run the processes of a run in the current namespace."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    row, worker = ROWS[name], Path(__file__).with_name("costs_worker.py")
    command = [worker, name, processes, out]
    if said := run_ranks(command, processes, row.machines_of(processes), SECONDS, row.launcher == "horovodrun"):
        raise SystemExit(said)


# -- checking ---------------------------------------------------------------------------------------------------------


def complaints(figures: Figures) -> list[str]:
    """Figures that differ from their formula or exceed the bar."""
    found = []
    for name, by_number in figures.items():
        row = ROWS[name]
        more = 2 * FACTS.largest if row.borders else 0
        for n, counted in by_number.items():
            for what, expected, figure, above in (
                ("held", row.held, _all_held(counted) / BYTES, more),
                ("sent", row.sent, counted["sent"] / BYTES, 0),
            ):
                formula = figure if expected.value is None else expected.value(n)
                close = CLOSE * max(1, formula)
                if not formula - close <= figure <= formula + close + above:
                    found.append(f"{name}, {n} processes: {what} {figure:.3f} P. Expected: {formula:.3f} P")
            if name in BARRED and _all_held(counted) > (1 / n + BAR) * 4 * BYTES:
                found.append(f"{name}, {n} processes: holds more than 1/{n} + {BAR:.0%} of DDP's memory")
    return found


def _all_held(counted: Counted) -> float:
    return counted["held"] + counted["host"]


# -- tables ---------------------------------------------------------------------------------------------------------


def conditions() -> str:
    """The conditions of the measurement, as Markdown."""
    return (
        f"A transformer of four layers with {BYTES / 4e6:.1f} million parameters in float32, P = {BYTES / 1e6:.1f} MB, "
        f"{ITEMS} texts of {LENGTH} characters a process and step; gloo over the loopback interface, "
        f"{versions('torch', 'deepspeed', 'horovod')}, Python {platform.python_version()}, CPU. Not run on GPUs."
    )


def memory_table(figures: Figures) -> str:
    numbers = sorted({n for by_number in figures.values() for n in by_number})
    several = [n for n in numbers if n > 1]
    lines = [
        "| strategy | each process holds | " + " | ".join(f"n = {n}, MB" for n in numbers) + " | "
        "" + " | ".join(f"n = {n}, of `ddp`'s" for n in several) + f" | in addition, n = {numbers[-1]}, MB |",
        "|---|---|" + "---:|" * (len(numbers) + len(several)) + "---|",
    ]
    for name, by_number in figures.items():
        cells = [ROWS[name].title, ROWS[name].held.text]
        cells += [_megabytes(by_number[n]) if n in by_number else "" for n in numbers]
        cells += [f"{_all_held(by_number[n]) / BYTES / 4:.1%}" if n in by_number else "" for n in several]
        most = by_number[max(by_number)]["extra"] / 1e6
        cells.append(f"{most:.1f} {ROWS[name].extra}" if most >= 1 else ROWS[name].extra)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([conditions(), "", *lines])


def _megabytes(counted: Counted) -> str:
    device, host = counted["held"] / 1e6, counted["host"] / 1e6
    return f"{device:.1f} + {host:.1f}" if host else f"{device:.1f}"


def traffic_table(figures: Figures) -> str:
    numbers = sorted({n for by_number in figures.values() for n in by_number if n > 1})
    heads = [head for n in numbers for head in (f"n = {n}, MB", "by formula", "of `ddp`'s")]
    lines = [
        f"| strategy | each process sends a step | {' | '.join(heads)} |",
        "|---|---|" + "---:|" * len(heads),
    ]
    for name, by_number in figures.items():
        cells = [ROWS[name].title, ROWS[name].sent.text]
        for n in numbers:
            cells += _sent_cells(ROWS[name], n, by_number[n]) if n in by_number else ["", "", ""]
        if any(n in by_number for n in numbers):
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([conditions(), "", *lines])


def _sent_cells(row: Row, n: int, counted: Counted) -> list[str]:
    if row.sent.value is None:
        return ["by the clock", "", ""]
    plain = 2 * (n - 1) / n * BYTES
    return [
        f"{counted['sent'] / 1e6:.1f}",
        f"{row.sent.value(n) * BYTES / 1e6:.1f}",
        f"{counted['sent'] / plain:.0%}",
    ]


def main() -> None:
    """Measure, write the tables, and fail if a figure differs from its formula."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--only", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="ROW", help="rows to measure; default: all"
    )
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4], help="numbers of processes")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page to write the tables to")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        run_inside(arguments.only[0], arguments.processes[0], arguments.inside)
        return
    figures: Figures = {}
    for name in arguments.only:
        figures[name] = {}
        for n in [1] if name == "single_device" else arguments.processes:
            figures[name][n] = count(name, n)
            print(
                f"{name} {n}", {kind: f"{value / BYTES:.3f} P" for kind, value in figures[name][n].items()}, flush=True
            )
    tables = {"memory": memory_table(figures), "traffic": traffic_table(figures)}
    print("\n\n".join(tables.values()))
    if arguments.write:
        for name, table in tables.items():
            write_between(arguments.write, name, table)
    if found := complaints(figures):
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
