"""Writes the results of the conformance kit on each accelerator as the table in ``docs/hardware.md``.

Usage: ``python benchmarks/hardware.py FOLDER``, where FOLDER has the reports of the kit's runs, written with
``CORE_CONFORMANCE_REPORTS=FOLDER`` in the environment. ``nox -s hardware`` does both.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "hardware.md"

RUNS_ON = {
    "cpu": "this machine's CPU",
    "cuda": "no GPU here; see [below](#on-an-h100)",
    "xla": "**not run on TPUs**: the real `torch_xla`, on this machine's CPU by PJRT",
    "hpu": "**not run on hardware**: simulated devices, and a stand-in for Intel's library",
    "ipu": "**not run on hardware**: a stand-in for `poptorch` that runs whole steps on the CPU",
    "mps": "**not run on hardware**: a simulated device",
    "npu": "**not run on hardware**: simulated devices, and a stand-in for `torch_npu`",
    "xpu": "**not run on hardware**: simulated devices, and a stand-in for Intel's driver",
    "acme": "simulated cards (C++, on this machine's memory); there is no hardware of this name",
}
"""What each is, in the order of the page: real hardware first."""

KEPT = "## On torch's openreg"
"""What follows this line on the page was measured elsewhere, and written by hand."""

HEAD = """\
# Hardware

What the [conformance kit](conformance.md) found on each accelerator. Made by `nox -s hardware`, which runs the kit
and writes this page. What ran on [torch's openreg](#on-torchs-openreg) and on [a real GPU](#on-an-h100) was written by
hand.

"""


COLUMNS = {
    "passed": "passed",
    "expected_failure": "expected failures",
    "unsupported": "unsupported, as declared",
    "works_undeclared": "works, undeclared",
    "not_run": "not run",
    "failed": "failed",
}


def main() -> int:
    """Write the page; return 1 if a test failed or an accelerator has no report."""
    suites = [suite for report in reports(Path(sys.argv[1])) for suite in accelerators(report)]
    if missing := sorted(RUNS_ON.keys() - {suite["backend"]["name"] for suite in suites}):
        print(f"no complete report on {', '.join(missing)} in {sys.argv[1]}; the page stays as it is", file=sys.stderr)
        return 1
    order = {name: place for place, name in enumerate(RUNS_ON)}
    suites.sort(key=lambda suite: (order.get(suite["backend"]["name"], len(order)), suite["devices"] or 0))
    _, title, kept = PAGE.read_text("utf-8").partition(KEPT)
    PAGE.write_text(f"{HEAD}{table(suites)}\n{remarks(suites)}\n{title}{kept}", "utf-8")
    return int(any(test["outcome"] == "failed" for suite in suites for test in suite["tests"]))


def reports(folder: Path) -> list[dict[str, Any]]:
    """All reports in ``folder``, and files ``report.json`` of tests in its subfolders."""
    paths = sorted({path.resolve() for path in (*folder.glob("*.json"), *folder.rglob("*/report.json"))})
    return [json.loads(path.read_text("utf-8")) for path in paths]


def accelerators(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The accelerators of a complete report, each with the report's versions."""
    return [
        {**suite, "versions": report["versions"], "date": report["date"][:10]}
        for suite in report["suites"]
        if suite["backend"]["kind"] == "accelerator" and report["complete"]
    ]


def table(suites: list[dict[str, Any]]) -> str:
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
        unsupported = sorted(suite["unsupported"].items())
        lines += [f"* `{name}` does not support {what}: {reason}." for what, reason in unsupported]
        for test in suite["tests"]:
            if test["outcome"] in ("expected_failure", "failed"):
                how = test["outcome"].replace("_", " ")
                lines.append(f"* `{name}`, {how}: `{test['id'].partition('::')[2]}`: {test['reason']}")
    text = "\n".join(dict.fromkeys(lines))
    return f"## Not supported\n\n{text}\n\n*Not run*: tests that need more devices than the machine has, or metadata.\n"


if __name__ == "__main__":
    sys.exit(main())
