"""Running each suite's tier in a separate process, so that a crash or a hang fails only one test."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torch_hal.utilities.child_process import ChildProcess, describe_end

__all__ = ["Child", "isolate"]

_CODE = """\
import pytest
sys.exit(pytest.main([*task["arguments"], f"--conformance-child={directory}"]))
"""


class Child:
    """The pytest plugin of such a process: it runs only the given tests and writes the result of each into a journal.

    Args:
        directory: The folder of its task and its journal.
    """

    def __init__(self, directory: Path) -> None:
        self.tests: list[str] = json.loads((directory / "task").read_text("utf-8"))["tests"]
        self.journal = (directory / "journal").open("a", encoding="utf-8")
        self.config: pytest.Config | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the config, whose hooks serialize reports."""
        self.config = session.config

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Select the given tests."""
        chosen = set(self.tests)
        items[:] = [item for item in items if item.nodeid in chosen]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._note({"start": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended."""
        assert self.config is not None
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self._note({"report": data})

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended."""
        self._note({"finish": nodeid})

    def _note(self, line: dict[str, Any]) -> None:
        self.journal.write(json.dumps(line) + "\n")
        self.journal.flush()


def isolate(session: pytest.Session, limit: float) -> bool:
    """Run the session's tests, in place of pytest's own loop.

    Args:
        session: The session with the tests.
        limit: Seconds for one test.
    """
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} error(s) during collection")
    for items in _groups(session.items):
        pending = items
        while pending:
            pending = _Process(session, pending).run(limit)
    return True


def _groups(items: Iterable[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """The tests by suite, tier and backend; other tests by module."""
    groups: dict[tuple[str, ...], list[pytest.Item]] = {}
    for item in items:
        known: Any = next((value for name, value in item.user_properties if name == "conformance"), {})
        parent = item.parent.nodeid if item.parent is not None else ""
        groups.setdefault((parent, known.get("group", ""), known.get("tier", "")), []).append(item)
    yield from groups.values()


class _Process:
    """One process that runs some tests.

    Args:
        session: Receives the reports.
        items: The tests.
    """

    def __init__(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        self.session = session
        self.items = {item.nodeid: item for item in items}
        self.finished: set[str] = set()
        self.running: str | None = None
        self.last: str | None = None

    def run(self, limit: float) -> list[pytest.Item]:
        """Run the tests; return those that were not run because an earlier one ended the process."""
        config = self.session.config
        arguments = [str(argument) for argument in config.invocation_params.args]
        task = {"arguments": arguments, "tests": list(self.items)}
        with ChildProcess(_CODE, task, cwd=config.invocation_params.dir) as process:
            end = self._follow(process, limit)
            output = process.output[-4000:]
        pending = [item for nodeid, item in self.items.items() if nodeid not in self.finished]
        if self.running is not None:
            self._fail(self.running, f"{end} in this test\n{output}")
            return [item for item in pending if item.nodeid != self.running]
        for item in pending:
            self._fail(item.nodeid, f"{end} before this test\n{output}")
        if end.startswith(("the process was killed", "the process hung")) and not pending and self.last is not None:
            self._fail(self.last, f"{end} after the last test\n{output}")
        return []

    def _follow(self, process: ChildProcess, limit: float) -> str:
        """Handle the journal's lines as they are written; returns how the process ended."""
        journal = Path(process.directory, "journal")
        journal.touch()
        deadline, rest = time.monotonic() + limit, ""
        with journal.open(encoding="utf-8") as lines:
            while True:
                is_running = process.is_running()
                text = lines.read()
                if text:
                    deadline = time.monotonic() + limit
                    *whole, rest = (rest + text).split("\n")
                    for line in whole:
                        self._take(json.loads(line))
                elif not is_running:
                    was = "was " if process.exit_code < 0 else ""
                    return f"the process {was}{describe_end(process.exit_code)}"
                elif time.monotonic() > deadline:
                    return f"the process hung: it was killed after {limit:g} s"
                else:
                    process.is_running(0.05)

    def _take(self, note: dict[str, Any]) -> None:
        if "start" in note:
            self.running = note["start"]
            self._start(note["start"])
        elif "finish" in note:
            self.running, self.last = None, note["finish"]
            self.finished.add(note["finish"])
            self._finish(note["finish"])
        else:
            config = self.session.config
            self._log(config.hook.pytest_report_from_serializable(config=config, data=note["report"]))

    def _start(self, nodeid: str) -> None:
        item = self.items[nodeid]
        item.ihook.pytest_runtest_logstart(nodeid=nodeid, location=item.location)

    def _finish(self, nodeid: str) -> None:
        item = self.items[nodeid]
        item.ihook.pytest_runtest_logfinish(nodeid=nodeid, location=item.location)

    def _fail(self, nodeid: str, text: str) -> None:
        """Report the failure of a test whose process has ended."""
        item = self.items[nodeid]
        if nodeid not in (self.running, self.last):
            self._start(nodeid)
        self._log(
            pytest.TestReport(
                nodeid,
                item.location,
                keywords={},
                outcome="failed",
                longrepr=text,
                when="call",
                user_properties=item.user_properties,
            )
        )
        if nodeid != self.last:
            self._finish(nodeid)

    def _log(self, report: pytest.TestReport) -> None:
        self.items[report.nodeid].ihook.pytest_runtest_logreport(report=report)
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop:
            raise self.session.Interrupted(self.session.shouldstop)
