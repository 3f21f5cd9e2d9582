"""Measures how long a script takes to start: the import, the first step on one process, the whole script on two.

    python benchmarks/startup.py
    python benchmarks/startup.py --rounds 5

Each run is a new process, and the front ends take turns, round after round; the table has the medians. "by hand" and
Accelerate are started by torchrun on two processes, the others start their processes themselves.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SCRIPT = Path(__file__).with_name("startup_script.py")
NEEDS = {"Accelerate": "accelerate", "Fabric": "lightning", "Lightning": "lightning"}
NAMES = ("torch", "by hand", "Runtime", "Trainer", "Accelerate", "Fabric", "Lightning")
LAUNCHED = ("by hand", "Accelerate")
OURS = ("Runtime", "Trainer")
TRIES = 5
"""A process with gloo can abort in torch itself while the interpreter ends, unless the front end prevents it: such a
run is made again, and counted."""
aborted: list[str] = []
COLUMNS = ("import", "first step", "whole on one", "whole on two", "CPU on two")


def run(name: str, devices: int) -> dict[str, float]:
    """One run: seconds until the import and the step were done, of the whole process, and of its processors."""
    command = [sys.executable, "-W", "ignore"]
    if devices > 1 and name in LAUNCHED:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "STARTED": str(time.time())}
    cpu = sum(os.times()[2:4])
    began = time.monotonic()
    done = subprocess.run(
        [*command, str(SCRIPT), name, str(devices)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    seconds, cpu = time.monotonic() - began, sum(os.times()[2:4]) - cpu
    line = next((line for line in done.stdout.splitlines() if line.startswith("imported=")), None)
    is_abort = "SIGABRT" in done.stderr or "terminate called without an active exception" in done.stderr
    if done.returncode != 0 and name not in OURS and is_abort and aborted.count(name) < TRIES:
        aborted.append(name)
        return run(name, devices)
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
    options = parser.parse_args(arguments)
    names = [name for name in options.only if importlib.util.find_spec(NEEDS.get(name, "torch")) is not None]
    figures: dict[str, dict[str, list[float]]] = {name: {column: [] for column in COLUMNS} for name in names}
    for _ in range(options.rounds):
        for name in names:
            one = run(name, 1)
            row = figures[name]
            row["import"].append(one["import"])
            row["first step"].append(one["first step"])
            row["whole on one"].append(one["whole"])
            if name != "torch":
                two = run(name, 2)
                row["whole on two"].append(two["whole"])
                row["CPU on two"].append(two["CPU"])
    print(f"seconds since the start of the process; medians of {options.rounds} runs\n")
    print(f"{'':<12}" + "".join(f"{column:>14}" for column in COLUMNS))
    for name, row in figures.items():
        print(f"{name:<12}" + "".join(f"{statistics.median(row[c]):14.2f}" if row[c] else f"{'':14}" for c in COLUMNS))
    for name in dict.fromkeys(aborted):
        print(f"{name}: {aborted.count(name)} run(s) on two processes aborted at their end, and were repeated")


if __name__ == "__main__":
    main()
