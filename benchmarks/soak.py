"""Runs many two-process runs one after another, and checks how each ends.

``python benchmarks/soak.py --runs 100`` prints the count of each exit code, of the launching process and of the other
ranks, the processes that were left, and the time per run. The exit code is 0 if every run was clean.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

MARK = "CORE_SOAK"


def main() -> int:
    """Soak, or be one of the runs; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="number of runs (100)")
    parser.add_argument("--processes", type=int, default=2, help="processes per run (2)")
    parser.add_argument(
        "--end", choices=["leave", "exit"], default="exit", help="call teardown, or leave it to the exit (exit)"
    )
    parser.add_argument("--time-limit", type=float, default=60.0, help="time limit per run in seconds (60)")
    parser.add_argument("--train", action="store_true", help="internal: be one of the runs")
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.processes, arguments.end)
        return 0
    return soak(arguments)


def soak(arguments: argparse.Namespace) -> int:
    """Run this script again and again; the exit code."""
    codes: Counter[str] = Counter()
    seconds = []
    leftover = 0
    command = [sys.executable, __file__, "--train", "--processes", str(arguments.processes), "--end", arguments.end]
    for _ in range(arguments.runs):
        mark = uuid.uuid4().hex
        start = time.perf_counter()
        process = subprocess.Popen(
            command, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            output, _ = process.communicate(timeout=arguments.time_limit)
            code = str(process.returncode)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            code = "time limit"
        seconds.append(time.perf_counter() - start)
        codes[code] += 1
        left = processes_with(f"{MARK}={mark}")
        leftover += len(left)
        if code != "0" or left or output.count("trained") != arguments.processes:
            print(f"exit code {code}, left behind {left}:\n{output}")
            codes["unclean"] += 1
    print(
        f"exit codes: {dict(codes)}; left behind: {leftover} processes; median {statistics.median(seconds):.2f} s a run"
    )
    return 0 if codes == Counter({"0": arguments.runs}) and not leftover else 1


def processes_with(variable: str) -> list[int]:
    """The running processes that have ``variable`` in their environment; from ``/proc``, so on Linux."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it has ended meanwhile, or is another user's
            continue
    return found


def train(processes: int, end: str) -> None:
    """A few steps of DistributedDataParallel, ended by an ``all_gather``, after which some processes died at exit."""
    import torch

    from core import Runtime

    runtime = Runtime(accelerator="cpu", strategy="ddp", devices=processes)
    model = torch.nn.Linear(16, 16)
    model, optimizer = runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(5):
        runtime.backward(model(torch.randn(8, 16)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    runtime.gather(next(model.parameters())[0].detach())
    print("trained", flush=True)
    if end == "leave":
        runtime.teardown()


if __name__ == "__main__":
    sys.exit(main())
