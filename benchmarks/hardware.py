"""What the conformance kit finds on each accelerator, as the table in ``docs/hardware.md``.

Usage: ``python benchmarks/hardware.py FOLDER``, where every run of the kit left its report in FOLDER, as it does with
``CORE_CONFORMANCE_REPORTS=FOLDER`` in the environment. ``nox -s hardware`` makes the runs and the table.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "hardware.md"

RUNS_ON = {
    "acme": "simulated cards (C++, on this machine's memory); there is no hardware of this name",
    "cpu": "this machine's CPU",
    "cuda": "**not run on hardware**: no GPU here",
    "hpu": "**not run on hardware**: simulated devices, and a stand-in for Intel's library",
    "ipu": "**not run on hardware**: a stand-in for `poptorch` that runs whole steps on the CPU",
    "mps": "**not run on hardware**: a simulated device",
    "xla": "**not run on TPUs**: the real `torch_xla`, on this machine's CPU by PJRT",
}

HEAD = """\
# Hardware

What the [conformance kit](conformance.md) found on each accelerator. Made by `nox -s hardware`, which runs the kit anew
and writes this page.

"""

COLUMNS = {
    "passed": "passed",
    "expected_failure": "expected failures",
    "lacked": "lacked by declaration",
    "works_undeclared": "works, undeclared",
    "not_run": "not run",
    "failed": "failed",
}


def main() -> int:
    """Write the page; returns 1 where a test failed."""
    suites = [suite for report in reports(Path(sys.argv[1])) for suite in accelerators(report)]
    suites.sort(key=lambda suite: (suite["backend"]["name"], suite["devices"] or 0))
    PAGE.write_text(HEAD + table(suites) + "\n" + remarks(suites), "utf-8")
    return int(any(test["outcome"] == "failed" for suite in suites for test in suite["tests"]))


def reports(folder: Path) -> list[dict[str, Any]]:
    """Every report in ``folder``, and those that tests left below it under the name ``report.json``."""
    paths = sorted({path.resolve() for path in (*folder.glob("*.json"), *folder.rglob("*/report.json"))})
    return [json.loads(path.read_text("utf-8")) for path in paths]


def accelerators(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The report's accelerators that were wholly tested, each with the report's versions."""
    return [
        {**suite, "versions": report["versions"], "date": report["date"][:10]}
        for suite in report["suites"]
        if suite["backend"]["kind"] == "accelerator" and report["complete"]
    ]


def table(suites: list[dict[str, Any]]) -> str:
    """A row for each accelerator and number of devices."""
    lines = [f"| accelerator | devices | runs on | {' | '.join(COLUMNS.values())} | torch | date |"]
    lines.append("|" + "---|" * (len(COLUMNS) + 5))
    for suite in suites:
        counts = Counter(test["outcome"] for test in suite["tests"])
        name, devices = suite["backend"]["name"], suite["devices"]
        cells = [f"`{name}`", "any" if devices is None else str(devices), RUNS_ON.get(name, suite["hardware"])]
        cells += [str(counts[outcome]) for outcome in COLUMNS]
        lines.append(f"| {' | '.join([*cells, suite['versions']['torch'], suite['date']])} |")
    return "\n".join(lines) + "\n"


def remarks(suites: list[dict[str, Any]]) -> str:
    """Each declaration and each expected failure, with its reason."""
    lines = []
    for suite in suites:
        name = suite["backend"]["name"]
        lines += [f"* `{name}` lacks {word}: {reason}." for word, reason in sorted(suite["lacks"].items())]
        for test in suite["tests"]:
            if test["outcome"] in ("expected_failure", "failed"):
                how = test["outcome"].replace("_", " ")
                lines.append(f"* `{name}`, {how}: `{test['id'].partition('::')[2]}`: {test['reason']}")
    text = "\n".join(dict.fromkeys(lines))
    return f"## What they lack\n\n{text}\n\n*Not run* is what takes more devices than there are, or metadata.\n"


if __name__ == "__main__":
    sys.exit(main())
