"""Measures the plugins' ``detect`` functions in addition to the listing, on a machine without their hardware.

Usage: ``python benchmarks/detection.py [--runs N]``, with the plugins installed. Three commands run in turn: the
listing; the listing and then every ``detect`` in the same process; and the listing and then detection as resolution
does it, in a separate process. Exits with 1 if the functions themselves take more than 20 ms, or import torch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

from core.discovery.registry import Registry
from core.specs import AcceleratorSpec

BAR = 20.0
"""Milliseconds that all functions together may take above the listing."""

LISTING = """\
import os, sys
from core.list import main
main([], os.environ)
"""
IN_THIS_PROCESS = """
from core.discovery.loading import import_target
for function in {functions}:
    sys.stderr.write(f"{{function}} {{import_target(function)()}}\\n")
assert "torch" not in sys.modules
"""
IN_ITS_OWN = """
from core.discovery.probe import detect
from core.specs import AcceleratorSpec
specs = [AcceleratorSpec(name=f"d{{n}}", target="a:B", detect=function) for n, function in enumerate({functions})]
for result in detect(specs).values():
    assert result.error is None, result
assert "torch" not in sys.modules
"""


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=40, help="runs of each command (default 40)")
    options = parser.parse_args()
    accelerators = cast(list[AcceleratorSpec], Registry.read(os.environ).specs("accelerator"))
    specs = {spec.name: spec.detect for spec in accelerators if spec.detect}
    with tempfile.TemporaryDirectory() as directory:
        scripts = {
            "core.list": LISTING,
            "and detect": LISTING + IN_THIS_PROCESS.format(functions=list(specs.values())),
            "and detect, as resolution asks": LISTING + IN_ITS_OWN.format(functions=list(specs.values())),
        }
        commands = {}
        for number, (label, source) in enumerate(scripts.items()):
            path = Path(directory, f"command_{number}.py")
            path.write_text(source)
            commands[label] = [sys.executable, str(path)]
        return report(measure(commands, options.runs), list(specs))


def measure(commands: dict[str, list[str]], runs: int) -> dict[str, list[float]]:
    """Milliseconds of each run of each command, the first run of each left out."""
    times: dict[str, list[float]] = {label: [] for label in commands}
    for run in range(runs + 1):
        for label, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
            if run:
                times[label].append((time.perf_counter() - start) * 1e3)
    return times


def report(times: dict[str, list[float]], names: list[str]) -> int:
    """Print a table; returns the exit code."""
    least = {label: min(values) for label, values in times.items()}
    base = least["core.list"]
    print(f"accelerators with a detect: {', '.join(names)}\n")
    print("| command | least ms | median ms | above core.list, least |\n|---|---|---|---|")
    for label, values in times.items():
        print(f"| {label} | {least[label]:.1f} | {statistics.median(values):.1f} | {least[label] - base:+.1f} |")
    return int(least["and detect"] - base > BAR)


if __name__ == "__main__":
    sys.exit(main())
