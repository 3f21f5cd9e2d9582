"""``torch-hal conformance``: one command, a page to publish, and a comparison with the last run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from torch_hal_devkit import html
from torch_hal_devkit.conformance import main, regressions
from torch_hal_devkit.report import OUTCOMES, TIERS


def _report(**outcomes: str) -> dict[str, Any]:
    tests = [
        {
            "id": f"accelerator:acme::{name}",
            "tier": "T1",
            "outcome": outcome,
            "reason": "<why> & how: `detect`",
            "seconds": 0.1,
        }
        for name, outcome in outcomes.items()
    ]
    suite = {
        "suite": "accelerator:acme",
        "backend": {"kind": "accelerator", "name": "acme", "distribution": "torch-hal-acme", "version": "1"},
        "hardware": "Acme <3>",
        "devices": 2,
        "unsupported": {"float64": "32 bits at most"},
        "tiers": {"T1": {outcome: [*outcomes.values()].count(outcome) for outcome in outcomes.values()}},
        "proven": [*outcomes.values()].count("passed"),
        "tests": tests,
    }
    return {"date": "now", "versions": {"torch": "2"}, "complete": True, "deselected": 0, "suites": [suite]}


def test_what_is_worse() -> None:
    """Worse is what worked and fails, is skipped, or is gone; a new failure of what never worked is not."""
    before = _report(a="passed", b="passed", c="failed", d="passed", e="works_undeclared", f="passed")
    after = _report(a="passed", b="failed", c="failed", d="unsupported", e="passed", g="failed")
    assert [line.partition("::")[2] for line in regressions(before, after)] == [
        "b: passed -> failed (<why> & how: `detect`)",
        "d: passed -> unsupported (<why> & how: `detect`)",
        "f: passed -> not there",
    ]
    assert regressions(after, after) == []


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img"), "the page needs another file"
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page() -> None:
    """It says what was proven, on what, and why the rest was not, in valid HTML that needs no other file."""
    read = _Text()
    read.feed(html.page(_report(a="passed", b="failed", c="not_run"), TIERS, OUTCOMES))
    assert not read.open
    assert "`" not in "".join(read.text)
    text = " ".join(" ".join(read.text).split())
    for part in (
        "proven: 1 of 3; 1 failed",
        "Acme <3>",
        "devices: 2",
        "T1: import: no device",
        "<why> & how",
        "torch 2",
    ):
        assert part in text, text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backend=accelerator:cpu", "--report=page.pdf"], "expected a file name that ends with"),
        (["--backend=accelerator:cpu", "--compare=nothing.json"], "not a JSON report of the kit"),
        (["--backend=accelerator:cpu", "--jobs=0"], "--jobs 0: expected 1 or more"),
        ([], "--backend"),
    ],
)
def test_usage_errors(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong command line is refused before any test runs."""
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    """It runs the kit, writes the reports, and exits with 1 if a test of the last report does not pass any more."""
    command = [sys.executable, "-m", "core", "conformance", "--backend=precision:32-true", "--tiers=T0"]
    first = [*command, "--report=page.html", "--report=last.json", "--hardware=two cores"]
    subprocess.run(first, cwd=tmp_path, check=True, timeout=200)
    assert "two cores" in (tmp_path / "page.html").read_text("utf-8")
    last = json.loads((tmp_path / "last.json").read_text("utf-8"))
    last["suites"][0]["tests"].append({**last["suites"][0]["tests"][0], "id": "precision:32-true::test_of_yesterday"})
    (tmp_path / "last.json").write_text(json.dumps(last), "utf-8")
    worse = subprocess.run(
        [*command, "--compare=last.json"], cwd=tmp_path, check=False, timeout=200, stdout=subprocess.PIPE, text=True
    )
    assert worse.returncode == 1
    assert "worse: precision:32-true::test_of_yesterday: passed -> not there" in worse.stdout


@pytest.mark.slow
def test_a_first_answer(tmp_path: Path) -> None:
    """``--quick`` runs some tests of each tier, and one short run; the report says that it is not complete."""
    command = [sys.executable, "-m", "core", "conformance", "--backend=strategy:ddp", "--quick", "--report=quick.json"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=200)
    report = json.loads((tmp_path / "quick.json").read_text("utf-8"))
    (suite,) = report["suites"]
    assert not report["complete"]
    assert {tier for tier, counts in suite["tiers"].items() if counts.get("passed", 0) > 5} == {"T0", "T1", "T3"}
    names = [test["id"] for test in suite["tests"] if test["outcome"] == "passed"]
    assert "strategy:ddp::test_rates_are_followed[multi_device]" in names


@pytest.mark.exhaustive
def test_side_by_side(tmp_path: Path) -> None:
    """With ``--jobs 2`` each run is still made once, all tests pass, and lines say how many are done."""
    command = [sys.executable, "-m", "core", "conformance", "--backend=strategy:ddp", "--jobs=2", "--report=all.json"]
    done = subprocess.run(command, cwd=tmp_path, check=True, timeout=600, stdout=subprocess.PIPE, text=True)
    assert re.search(r"\d+ of \d+ tests in \d+ s, about \d+ s left", done.stdout)
    assert json.loads((tmp_path / "all.json").read_text("utf-8"))["complete"]
