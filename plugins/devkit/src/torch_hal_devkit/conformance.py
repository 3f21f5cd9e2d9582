"""The verb ``conformance`` of torch-hal: test a backend, and write a page to publish."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_hal.commands.verb_parser import VerbParser

__all__ = ["main", "regressions"]

_EPILOG = """\
examples:
  {program} --backend accelerator:acme --hide-devices ACME_VISIBLE=
  {program} --backend accelerator:acme --hardware "Acme 3, driver 1.2" --report acme.html --report acme.json
  {program} --backend accelerator:acme --compare acme.json
  {program} --backend strategy:acme --quick

Arguments after -- go to pytest. The exit code is 0 if no test failed and nothing is worse than in the report that
--compare names, 1 otherwise, 2 if the command line is wrong.
"""
_KIT = ("-p", "no:cacheprovider", "-p", "torch_hal_devkit.plugin", "--pyargs", "torch_hal_devkit.suite")
_SUFFIXES = (".html", ".json", ".md")
_WORKS = ("passed", "works_undeclared")


def main(arguments: Sequence[str] | None = None, program: str = "torch-hal conformance") -> int:
    """Run the kit; returns the exit code.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    parser = VerbParser(
        program,
        description="Test backends against what torch-hal guarantees to its users, and write a page to publish.",
        epilog=_EPILOG.format(program=program),
    )
    add = parser.add_argument
    add("--backend", action="append", required=True, metavar="KIND:NAME", help="a backend to test; repeatable")
    add("--report", action="append", default=[], metavar="FILE", help="write .html, .json or .md; repeatable")
    add("--compare", metavar="FILE", help="the .json of an earlier run; what is worse than there is listed")
    add("--hardware", default="", metavar="TEXT", help="what this runs on, for the report")
    add("--backend-devices", metavar="N", help="number of devices of this machine; fewer are a failure")
    add("--hide-devices", action="append", default=[], metavar="NAME=VALUE", help="variable that hides all devices")
    add("--quick", action="store_true", help="a first answer in about a minute: a part of the tests")
    add(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="tests that do not disturb each other run in N processes (pytest-xdist)",
    )
    add("--tiers", default="", metavar="T0,T1,...", help="run only tests of these tiers")
    add("--expected-failures", metavar="FILE", help="TOML file of known failures: test id = reason")
    add("pytest", nargs="*", help=argparse.SUPPRESS)
    options = parser.read(arguments)
    for path in options.report:
        if Path(path).suffix not in _SUFFIXES:
            parser.error(f"--report {path!r}: expected a file name that ends with one of {', '.join(_SUFFIXES)}")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: expected 1 or more")
    elif options.jobs > 1 and importlib.util.find_spec("xdist") is None:
        parser.error(f"--jobs {options.jobs}: pytest-xdist is not installed. Run: pip install pytest-xdist")
    before = None
    if options.compare is not None:
        try:
            before = json.loads(Path(options.compare).read_text("utf-8"))
            _outcomes(before)
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"--compare {options.compare!r}: not a JSON report of the kit: {error!r}")
    return _run(options, before)


def _run(options: argparse.Namespace, before: Mapping[str, Any] | None) -> int:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        last = Path(folder, "report.json")
        command = [sys.executable, "-m", "pytest", "-q", *_KIT, f"--conformance-report={last}", "--show-progress"]
        command += ["--quick"] if options.quick else []
        command += [f"-n{options.jobs}", "--dist=loadgroup"] if options.jobs > 1 else []
        command += [f"--backend={backend}" for backend in options.backend]
        command += [f"--conformance-report={path}" for path in options.report]
        command += [f"--hide-devices={variable}" for variable in options.hide_devices]
        for name in ("hardware", "backend_devices", "tiers", "expected_failures"):
            if value := getattr(options, name):
                command.append(f"--{name.replace('_', '-')}={value}")
        code = subprocess.run([*command, *options.pytest], check=False).returncode
        if before is None or not last.exists():
            return 2 if code > 1 else code
        worse = regressions(before, json.loads(last.read_text("utf-8")))
    for line in worse:
        sys.stdout.write(f"worse: {line}\n")
    sys.stdout.write(f"compared with {options.compare}: {len(worse)} tests are worse\n")
    return 2 if code > 1 else int(code != 0 or bool(worse))


def regressions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What is worse in a report than in an earlier one: tests that worked, and do not or are not there any more.

    Args:
        before: The earlier report, as its JSON says.
        after: The later one.
    """
    now = _outcomes(after)
    return [
        f"{name}: {outcome} -> {now.get(name, ('not there',))[0]}" + (f" ({now[name][1]})" if name in now else "")
        for name, (outcome, _) in _outcomes(before).items()
        if outcome in _WORKS and now.get(name, ("",))[0] not in _WORKS
    ]


def _outcomes(report: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """By id, the outcome of each test, and the reason."""
    return {test["id"]: (test["outcome"], test["reason"]) for suite in report["suites"] for test in suite["tests"]}


if __name__ == "__main__":
    sys.exit(main())
