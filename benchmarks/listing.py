"""Measures ``python -m core.list`` with 500 installed distributions, next to an empty module and importlib.metadata.

    python benchmarks/listing.py            # prints the table
    python benchmarks/listing.py --write    # writes it to docs/performance.md

The commands run in turn, so that other load on the machine affects all of them alike; exits with 1 if the listing takes
8 ms more than the empty module.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from pages import write_between

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BAR = 8.0
"""Milliseconds that the listing may take above an empty module."""

WITH_IMPORTLIB = """\
import argparse
from importlib.metadata import entry_points

argparse.ArgumentParser().parse_args()
found = entry_points()
for kind in ("accelerators", "strategies", "precisions", "checkpoint_ios", "cluster_environments"):
    for entry in sorted(found.select(group=f"core.{kind}")):
        print(entry.name, entry.dist.name, entry.dist.version)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60, help="runs of each command (default 60)")
    parser.add_argument("--distributions", type=int, default=500, help="installed distributions (default 500)")
    parser.add_argument("--plugins", type=int, default=2, help="how many of them are plugins (default 2)")
    parser.add_argument("--write", action="store_true", help="write the table to the page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        site = make_site(Path(directory, "site"), options.distributions, options.plugins)
        (site / "empty_module.py").write_text("")
        (site / "with_importlib.py").write_text(WITH_IMPORTLIB)
        environ = {**os.environ, "PYTHONPATH": str(site), "PYTHONPYCACHEPREFIX": str(Path(directory, "cache"))}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        modules = {"empty module": "empty_module", "core.list": "core.list", "importlib.metadata": "with_importlib"}
        times = measure(modules, environ, options.runs)
    above = min(times["core.list"]) - min(times["empty module"])
    written = table(times, options.distributions, above)
    print(written)
    if options.write:
        write_between(PAGE, "listing", written)
    return int(above > BAR)


def make_site(site: Path, distributions: int, plugins: int) -> Path:
    """A directory with that many distributions: one in four has entry points, and ``plugins`` are plugins of core."""
    every = distributions // plugins if plugins else distributions + 1
    random.seed(0)
    for number in range(distributions):
        name = f"package_{number}"
        (site / name).mkdir(parents=True)
        info = site / f"{name}-1.{number}.dist-info"
        info.mkdir()
        headers = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.{number}\nRequires-Dist: torch-hal>=0.1\n\n"
        (info / "METADATA").write_text(headers + "A line of a description.\n" * random.randrange(400))
        if number % 4 == 0:
            (info / "entry_points.txt").write_text(f"[console_scripts]\n{name} = {name}.cli:main\n")
        if number % every == 0 and number < every * plugins:
            (info / "entry_points.txt").write_text(f"[core.accelerators]\n{name} = {name}.plugin\n")
    return site


def measure(modules: dict[str, str], environ: dict[str, str], runs: int) -> dict[str, list[float]]:
    """Milliseconds of each run of each module, the first run of each left out."""
    times: dict[str, list[float]] = {label: [] for label in modules}
    for run in range(runs + 1):
        for label, module in modules.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-m", module], env=environ, stdout=subprocess.DEVNULL, check=True)
            if run:
                times[label].append((time.perf_counter() - start) * 1e3)
    return times


def table(times: dict[str, list[float]], distributions: int, above: float) -> str:
    """Medians, minima and differences, as Markdown; ``above`` is that of the fastest runs."""
    empty = statistics.median(times["empty module"])
    lines = [
        f"Milliseconds with {distributions} installed distributions, of {len(times['empty module'])} runs of each "
        f"({os.cpu_count()} cores, Python {platform.python_version()}, {date.today().isoformat()}):",
        "",
        "| | median | fastest | beyond an empty module |",
        "|---|---:|---:|---:|",
    ]
    for label, values in times.items():
        median = statistics.median(values)
        lines.append(f"| {label} | {median:.1f} | {min(values):.1f} | {median - empty:+.1f} |")
    said = f"By their fastest runs, the listing takes {above:.1f} ms more than an empty module. The limit is {BAR:.0f}."
    return "\n".join([*lines, "", said])


if __name__ == "__main__":
    sys.exit(main())
