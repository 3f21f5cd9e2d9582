"""Running the kit as a vendor does: in a separate process, on what is installed in a folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

HERE = Path(__file__).parent
SIMULATED = HERE.parents[2] / "tests" / "simulated"

_FOREIGN = ("PYTEST_", "CORE_", "SIMX_", "ACME_DEVICES", "TORCHELASTIC_", "TORCH_DEVICE_")
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@attrs.frozen
class Run:
    """How a run of the kit ended."""

    code: int
    output: str
    report: Mapping[str, Any]

    @property
    def tests(self) -> dict[str, dict[str, Any]]:
        """What the report says of each test, by its id."""
        return {test["id"]: test for suite in self.report.get("suites", []) for test in suite["tests"]}

    def ids(self, *outcomes: str) -> set[str]:
        """The tests that ended so."""
        return {name for name, test in self.tests.items() if test["outcome"] in outcomes}


def declare(
    site: Path, distribution: str, entry_points: Mapping[str, Mapping[str, str]], requires: str = "torch-hal>=0.1,<1"
) -> None:
    """Leave a distribution's metadata in ``site``, as an installer does.

    Args:
        site: A folder on the interpreter's path.
        distribution: Its name.
        entry_points: Group -> name -> module.
        requires: What it requires; nothing where empty.
    """
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n{needs}\n")
    lines = []
    for group, names in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {module}" for name, module in names.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def run_kit(
    cwd: Path,
    *arguments: str | Path,
    site: Sequence[Path] = (),
    suite: Sequence[str] = ("torch_hal_devkit.suite",),
    timeout: float = 300,
    **variables: str,
) -> Run:
    """Run ``pytest -p torch_hal_devkit.plugin --pyargs <suite> <arguments>``.

    Args:
        cwd: Where; the report goes there.
        *arguments: More of them.
        site: Folders that distributions are installed in.
        suite: What is collected.
        timeout: Seconds.
        **variables: Environment variables.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    environ = {name: value for name, value in environ.items() if name not in _RANKS}
    path = [*map(str, site), *filter(None, [environ.get("PYTHONPATH")])]
    environ |= {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", **variables}
    report = cwd / "report.json"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
        "-p",
        "torch_hal_devkit.plugin",
    ]
    command += ["--tb=short", "--conformance-report", str(report), *map(str, arguments), "--pyargs", *suite]
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    data = json.loads(report.read_text("utf-8")) if report.exists() else {}
    return Run(done.returncode, re.sub("\x1b\\[[0-9;]*m", "", done.stdout), data)
