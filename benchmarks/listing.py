"""Measures ``python -m core.list`` with 500 installed distributions, next to an empty module and importlib.metadata.

Then a Plan with 20 plugins, with an empty cache of what plugins said and with a filled one.

Usage: ``python benchmarks/listing.py [--runs N] [--distributions N]``. The commands run in turn, so that other load on
the machine affects all of them alike; exits with 1 if the listing takes 8 ms longer than the empty module.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


PLUGIN = """\
from core.hookspecs import hookimpl
from core.specs import AcceleratorSpec

@hookimpl
def core_accelerators():
    return [AcceleratorSpec(name={name!r}, target="{name}.none:None_", detect="{name}.plugin:count")]

def count():
    return 0
"""

WITH_PLAN = """\
import time
from core.plan import Request, resolve

request = Request.read()
for _ in range(3):
    before = time.perf_counter()
    resolve(request)
    print((time.perf_counter() - before) * 1e3)
"""


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=60, help="runs of each command (default 60)")
    parser.add_argument("--distributions", type=int, default=500, help="installed distributions (default 500)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        site = make_site(Path(directory, "site"), options.distributions)
        (site / "empty_module.py").write_text("")
        (site / "with_importlib.py").write_text(WITH_IMPORTLIB)
        environ = {**os.environ, "PYTHONPATH": str(site), "PYTHONPYCACHEPREFIX": str(Path(directory, "cache"))}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        modules = {"empty module": "empty_module", "core.list": "core.list", "importlib.metadata": "with_importlib"}
        times = measure(modules, environ, options.runs)
        report_plan(Path(directory))
    return report(times, options.distributions)


def report_plan(directory: Path) -> None:
    """Print the milliseconds of a Plan without plugins of others and with 20 of them."""
    for plugins in (0, 20):
        site = directory / f"plugins-{plugins}"
        site.mkdir()
        for name in (f"plugin_{number}" for number in range(plugins)):
            (site / name).mkdir()
            (site / name / "__init__.py").write_text("")
            (site / name / "plugin.py").write_text(PLUGIN.format(name=name))
            info = site / f"{name}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\n")
            (info / "entry_points.txt").write_text(f"[core.accelerators]\n{name} = {name}.plugin\n")
        environ = {**os.environ, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(directory / f"cache-{plugins}")}
        command = [sys.executable, "-c", WITH_PLAN]
        runs = [subprocess.run(command, env=environ, capture_output=True, text=True, check=True) for _ in range(2)]
        cold, warm = ([float(line) for line in run.stdout.split()] for run in runs)
        print(
            f"Plan with {plugins} plugins: {cold[0]:.0f} ms with an empty cache, {warm[0]:.0f} ms with a filled one, "
            f"{min(warm[1:]):.0f} ms for later Plans of the process"
        )


def make_site(site: Path, distributions: int) -> Path:
    """A directory with that many distributions: one in four has entry points, two are plugins of core."""
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
        if number in (0, distributions // 2):
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


def report(times: dict[str, list[float]], distributions: int) -> int:
    """Print medians, minima, differences and ratios; returns 1 where the bar is missed."""
    empty = statistics.median(times["empty module"])
    print(f"{distributions} installed distributions, {len(times['empty module'])} interleaved runs, milliseconds")
    print(f"{'':<20}{'median':>8}{'min':>8}{'above empty':>13}{'ratio':>7}")
    for label, values in times.items():
        median = statistics.median(values)
        print(f"{label:<20}{median:>8.1f}{min(values):>8.1f}{median - empty:>+13.1f}{median / empty:>7.2f}")
    above = min(times["core.list"]) - min(times["empty module"])
    print(f"core.list above an empty module, by their fastest runs: {above:+.1f} ms (limit: +{BAR:g})")
    return int(above > BAR)


if __name__ == "__main__":
    sys.exit(main())
