"""The report of the kit, for vendors to publish: the outcome of each test, as JSON and Markdown."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from torch_hal.discovery.scan import CORE
from torch_hal_devkit import html

__all__ = ["OUTCOMES", "SUFFIXES", "TIERS", "Report"]

SUFFIXES = (".html", ".json", ".md")

TIERS = {
    "T0": "metadata: no torch, no hardware",
    "T1": "import: no device",
    "T2": "one device",
    "T3": "two devices or more",
}
"""The tiers, and what each one needs."""

OUTCOMES = {
    "passed": "passed",
    "failed": "failed",
    "expected_failure": "expected failures",
    "unsupported": "skipped by declaration",
    "works_undeclared": "works, undeclared",
    "not_run": "not run",
}
"""The outcomes of a test, with the titles of their lists."""

_MARKER = "conformance"


class Report:
    """The outcomes of the tests, collected from pytest's reports.

    Args:
        paths: Files to write, in the format of their suffix.
        is_selection: Whether the command line names single tests.
    """

    def __init__(self, paths: Sequence[str], *, is_selection: bool = False) -> None:
        self.is_selection = is_selection
        self.paths = [Path(path) for path in paths]
        self.deselected = 0
        """The number of collected tests that the command line deselected."""
        self._tests: dict[str, dict[str, Any]] = {}
        self._groups: dict[str, dict[str, Any]] = {}

    def add(self, report: pytest.TestReport) -> None:
        """Record one phase of a test; tests that belong to no suite are ignored."""
        known = next((value for name, value in report.user_properties if name == _MARKER), None)
        if not isinstance(known, dict) or "id" not in known:
            return
        test = self._tests.setdefault(
            report.nodeid, {"id": known["id"], "tier": known["tier"], "outcome": "passed", "reason": "", "seconds": 0.0}
        )
        test["seconds"] = round(test["seconds"] + report.duration, 3)
        outcome = _outcome(report, known)
        if outcome != "passed" and test["outcome"] != "failed":
            test["outcome"], test["reason"] = outcome, _reason(report, known, outcome)
        group = self._groups.setdefault(known["group"], {"backend": {"kind": known["kind"]}, "tests": {}})
        group["tests"][report.nodeid] = test
        group["backend"].update(known.get("backend", {}))
        group.update({name: known[name] for name in ("hardware", "unsupported", "devices") if name in known})

    def arrange(self, ids: Iterable[str]) -> None:
        """Put tests into the order in which they were collected, whichever process ends one first."""
        order = {nodeid: number for number, nodeid in enumerate(ids)}
        for group in self._groups.values():
            group["tests"] = dict(sorted(group["tests"].items(), key=lambda test: order.get(test[0], len(order))))

    def write(self) -> None:
        """Write all files."""
        for path in self.paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            data = self.data()
            if path.suffix == ".json":
                text = json.dumps(data, indent=2) + "\n"
            else:
                text = html.page(data, TIERS, OUTCOMES) if path.suffix == ".html" else markdown(data)
            path.write_text(text, "utf-8")

    def data(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "format": 1,
            "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "versions": {
                "torch-hal": _version(CORE),
                "torch": _version("torch"),
                "python": platform.python_version(),
                "platform": platform.platform(),
                "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
            },
            "complete": not (self.is_selection or self.deselected),
            "deselected": self.deselected,
            "suites": [self._group(name, group) for name, group in self._groups.items()],
        }

    def _group(self, name: str, group: Mapping[str, Any]) -> dict[str, Any]:
        tests = list(group["tests"].values())
        counts = {tier: Counter(test["outcome"] for test in tests if test["tier"] == tier) for tier in _tiers(tests)}
        return {
            "suite": name,
            "backend": group["backend"],
            "hardware": group.get("hardware") or "not stated",
            "devices": group.get("devices"),
            "unsupported": group.get("unsupported", {}),
            "tiers": {tier: dict(counted) for tier, counted in counts.items()},
            "proven": sum(counted["passed"] for counted in counts.values()),
            "tests": tests,
        }

    def summary(self) -> Iterator[str]:
        """One line per suite, and one per feature that works although it is declared unsupported."""
        for suite in self.data()["suites"]:
            counts = sum((Counter(counted) for counted in suite["tiers"].values()), Counter())
            parts = [f"{counts[outcome]} {title}" for outcome, title in OUTCOMES.items() if counts[outcome]]
            proven = f"proven: {suite['proven']} of {len(suite['tests'])}"
            yield f"conformance of {suite['suite']} ({', '.join(suite['tiers'])}): {', '.join(parts)}; {proven}"
            for test in suite["tests"]:
                if test["outcome"] == "works_undeclared":
                    yield f"  works, undeclared: {test['id']} ({test['reason']})"


def _outcome(report: pytest.TestReport, known: Mapping[str, Any]) -> str:
    if report.failed:
        return "failed"
    if report.skipped:
        return "expected_failure" if hasattr(report, "wasxfail") else str(known.get("outcome", "unsupported"))
    return str(known.get("outcome", "passed")) if report.when == "call" else "passed"


def _reason(report: pytest.TestReport, known: Mapping[str, Any], outcome: str) -> str:
    if outcome != "failed":
        return str(known["reason"])
    crash = getattr(report.longrepr, "reprcrash", None)
    return _first_lines(str(report.longrepr) if crash is None else crash.message)


def _first_lines(text: str) -> str:
    """The message without the comparison that pytest adds."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    message = [line for line in lines[:6] if not line.startswith(("assert ", "+ ", "and "))]
    return " ".join(message).removeprefix("AssertionError: ").removeprefix("torch_hal_devkit.fresh.NoAnswer: ")[:600]


def _tiers(tests: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({test["tier"] for test in tests})


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


# -- Markdown ----------------------------------------------------------------------------------------------------------


def markdown(data: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    lines = ["# Conformance", "", f"{data['date']}; {versions}."]
    if not data["complete"]:
        deselected = f" ({data['deselected']} after collection)" if data["deselected"] else ""
        lines += ["", f"**Not complete**: the command line deselected tests{deselected}."]
    for suite in data["suites"]:
        lines += ["", *_markdown_suite(suite)]
    return "\n".join(lines) + "\n"


def _markdown_suite(suite: Mapping[str, Any]) -> Iterator[str]:
    backend = suite["backend"]
    yield f"## {suite['suite']}"
    yield ""
    origin = f"{backend.get('distribution', '')} {backend.get('version', '')}".strip()
    yield f"{backend['kind']} `{backend.get('name', '')}` of {origin or 'an unknown distribution'}"
    yield ""
    yield f"* ran on: {suite['hardware']}"
    if suite["devices"] is not None:
        yield f"* devices: {suite['devices']}"
    for capability, reason in suite["unsupported"].items():
        yield f"* {capability} is not supported: {reason}"
    yield ""
    yield f"| tier | {' | '.join(OUTCOMES.values())} |"
    yield f"|---|{'---|' * len(OUTCOMES)}"
    for tier, counts in suite["tiers"].items():
        yield f"| {tier} | {' | '.join(str(counts.get(outcome, 0)) for outcome in OUTCOMES)} |"
    for outcome, title in OUTCOMES.items():
        tests = [test for test in suite["tests"] if test["outcome"] == outcome]
        if tests and outcome != "passed":
            yield ""
            yield f"### {title.capitalize()}"
            yield ""
            for test in tests:
                yield f"* `{test['id'].partition('::')[2]}` ({test['tier']}): {test['reason']}"
