"""Measures how long a script takes to start: the import, the first step on one process, the whole script on several.

    python benchmarks/startup.py
    python benchmarks/startup.py --rounds 5 --write     # also writes the table to docs/performance.md
    python benchmarks/startup.py --rounds 5 --processes 8 --only "by hand" Runtime "torch-hal run"

Each run is a new process, and the front ends take turns, round after round; the table has the medians. Python has
compiled all modules before, as pip does when it installs them. On several processes, torchrun starts "by hand" and
Accelerate, and "torch-hal run" the script of Runtime; the others start their processes themselves. "ddp_fork" is the
Trainer with that strategy.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import torch
from pages import write_between

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"

SCRIPT = Path(__file__).with_name("startup_script.py")
SCRIPTS = {"torch-hal run": "Runtime"}
NEEDS = {"Accelerate": "accelerate", "Fabric": "lightning", "Lightning": "lightning"}
NAMES = ("torch", "by hand", "Runtime", "Trainer", "ddp_fork", "torch-hal run", "Accelerate", "Fabric", "Lightning")
LAUNCHED = ("by hand", "Accelerate")
OURS = ("Runtime", "Trainer", "ddp_fork", "torch-hal run")
TRIES = 5
"""A process with gloo can abort in torch itself while the interpreter ends, unless the front end prevents it: such a
run is made again, and counted."""
aborted: list[str] = []
PR_SET_CHILD_SUBREAPER = 36
"""Linux then gives this process the children of those that have ended, so that it can wait for them."""
COLUMNS = ("import", "first step", "whole on one", "CPU on one", "whole on {}", "CPU on {}")


def run(name: str, devices: int, bytecode: str) -> dict[str, float]:
    """One run: seconds until the import and the step were done, of the whole process, and of its processors.

    ``bytecode`` is the folder of the compiled modules.
    """
    command = [sys.executable, "-W", "ignore"]
    if devices > 1 and name in LAUNCHED:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)]
    elif name == "torch-hal run":
        command += ["-m", "core.run", "--devices", str(devices)]
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "OMP_NUM_THREADS": "1", "STARTED": str(time.time())}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    cpu = sum(os.times()[2:4])
    began = time.monotonic()
    done = subprocess.run(
        [*command, str(SCRIPT), SCRIPTS.get(name, name), str(devices)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    seconds = time.monotonic() - began
    with contextlib.suppress(ChildProcessError):  # no child is left
        while True:  # Lightning does not wait for the processes that it has started
            os.waitpid(-1, 0)
    cpu = sum(os.times()[2:4]) - cpu
    line = next((line for line in done.stdout.splitlines() if line.startswith("imported=")), None)
    is_abort = "SIGABRT" in done.stderr or "terminate called without an active exception" in done.stderr
    if done.returncode != 0 and name not in OURS and is_abort and aborted.count(name) < TRIES:
        aborted.append(name)
        return run(name, devices, bytecode)
    if done.returncode != 0 or line is None:
        raise SystemExit(f"{name} on {devices} process(es): exit code {done.returncode}\n{done.stderr[-2000:]}")
    said = dict(pair.split("=") for pair in line.split())
    return {
        "import": float(said["imported"]),
        "first step": float(said["stepped"]),
        "whole": seconds,
        "CPU": cpu,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each (default: 3)")
    parser.add_argument("--only", nargs="+", default=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="of the last columns (default: 2)")
    parser.add_argument("--write", action="store_true", help="write the table to docs/performance.md")
    options = parser.parse_args(arguments)
    if options.write and options.only is not NAMES:
        parser.error("--write: the page has all rows; leave out --only")
    names = [name for name in options.only if importlib.util.find_spec(NEEDS.get(name, "torch")) is not None]
    columns = [column.format(options.processes) for column in COLUMNS]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    figures: dict[str, list[list[float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as bytecode:
        for number in range(options.rounds + 1):
            for name in names:
                one = run(name, 1, bytecode)
                row = [one["import"], one["first step"], one["whole"], one["CPU"]]
                if name != "torch":
                    several = run(name, options.processes, bytecode)
                    row += [several["whole"], several["CPU"]]
                if number:  # the first round compiles
                    figures[name].append(row)
    print(f"seconds since the start of the process; medians of {options.rounds} runs\n")
    print(f"{'':<14}" + "".join(f"{column:>14}" for column in columns))
    for name, rows in figures.items():
        print(f"{name:<14}" + "".join(f"{statistics.median(values):14.2f}" for values in zip(*rows, strict=True)))
    for name in dict.fromkeys(aborted):
        print(f"{name}: {aborted.count(name)} run(s) aborted at their end, and were repeated")
    if options.write:
        write_between(PAGE, "startup", table(figures, options.processes, options.rounds))


def table(figures: Mapping[str, list[list[float]]], processes: int, rounds: int) -> str:
    """The medians as Markdown."""
    where = f"{os.cpu_count()} cores, torch {torch.__version__}, {date.today().isoformat()}"
    lines = [
        f"Seconds on {where}, medians of {rounds} runs:",
        "",
        f"| | first step | whole script | of processors | whole, {processes} processes | of processors |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in figures.items():
        medians = [f"{statistics.median(values):.2f}" for values in zip(*rows, strict=True)][1:]
        lines.append(f"| {name} | {' | '.join([*medians, *[''] * (5 - len(medians))])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
