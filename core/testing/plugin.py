"""The pytest plugin of the conformance kit, opted in with ``-p core.testing.plugin``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core.errors import CoreError, quoted
from core.kinds import KINDS
from core.testing.expected import ExpectedFailures
from core.testing.isolation import Child, isolate
from core.testing.report import SUFFIXES, Report

if TYPE_CHECKING:
    from core.testing.backend import BackendUnderTest
    from core.testing.suites.base import Suite

for _name in ("core.testing.suites", "core.testing.problem"):
    if _name not in sys.modules:
        pytest.register_assert_rewrite(_name)

REPORTS = "CORE_CONFORMANCE_REPORTS"
"""The environment variable that names a folder in which every run of the kit leaves its report, as JSON."""

_NO_CODE = "core.testing.suite."
_TIERS = ("T0", "T1", "T2", "T3")
_DESELECTED = "conformance_deselected"
_FOUND = pytest.StashKey[dict[str, "BackendUnderTest"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The kit's options."""
    group = parser.getgroup("conformance", "torch-hal's conformance kit, see docs/conformance.md")
    add = group.addoption
    add("--backend", action="append", default=[], metavar="KIND:NAME", help="a backend to test; repeatable")
    add("--backend-devices", type=int, metavar="N", help="devices that this machine has: fewer are a failure")
    add("--tiers", default="", metavar="T0,T1,...", help="only tests of these tiers")
    add("--hardware", default="", metavar="TEXT", help="what this runs on, or 'simulated'; stated in the report")
    add("--hide-devices", action="append", default=[], metavar="NAME=VALUE", help="variable that hides all devices")
    add("--conformance-report", action="append", default=[], metavar="PATH", help="write .json or .md; repeatable")
    add("--expected-failures", metavar="FILE", help="TOML: id of a test = reason")
    add("--isolate", action="store_true", help="run each suite's tier in a process of its own")
    add("--isolate-limit", type=float, default=300.0, metavar="S", help="seconds for one test of such a process")
    add("--conformance-child", metavar="DIR", help="internal: this is such a process")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, and take part in what they ask for."""
    config.addinivalue_line("markers", "conformance(tier, needs, tried): a test of the conformance kit")
    _check_options(config)
    child = config.getoption("--conformance-child")
    if child is not None:
        config.pluginmanager.register(Child(Path(child)), "conformance-child")
    elif hasattr(config, "workerinput"):
        config.pluginmanager.register(_Worker(), "conformance-worker")
    else:
        recorder = _Recorder(Report(_report_paths(config), is_selection=_is_selection(config)))
        config.pluginmanager.register(recorder, "conformance-report")


def _report_paths(config: pytest.Config) -> list[str]:
    """Where the report goes: each ``--conformance-report``, and a file of its own in the folder of ``REPORTS``."""
    paths: list[str] = list(config.getoption("--conformance-report"))
    if folder := os.environ.get(REPORTS):
        paths.append(os.path.join(folder, f"{time.time_ns()}.json"))
    return paths


def _check_options(config: pytest.Config) -> None:
    for tier in _chosen_tiers(config):
        if tier not in _TIERS:
            raise pytest.UsageError(f"--tiers: {tier!r} is none. Valid: {quoted(_TIERS)}, separated by commas.")
    for word in config.getoption("--backend"):
        kind, _, name = word.partition(":")
        if not name or kind not in KINDS:
            raise pytest.UsageError(f"--backend {word!r}: expected KIND:NAME, KIND one of {quoted(KINDS)}.")
    for word in config.getoption("--hide-devices"):
        if "=" not in word:
            raise pytest.UsageError(f"--hide-devices {word!r}: expected NAME=VALUE.")
    for path in config.getoption("--conformance-report"):
        if Path(path).suffix not in SUFFIXES:
            raise pytest.UsageError(
                f"--conformance-report {path!r}: expected a name that ends with {quoted(SUFFIXES)}."
            )
    if config.getoption("--isolate") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--isolate with -n: both say in which process a test runs. Valid: one of the two.")


# -- which tests there are -------------------------------------------------------------------------------------------


def pytest_pycollect_makeitem(collector: Any, obj: object) -> list[Any] | None:
    """Leave out the kit's own suites of kinds that no ``--backend`` is of, and what is only derived from."""
    suite = _suite(obj)
    if suite is None:
        return None
    if obj.__module__.startswith("core.testing.suites."):
        return []
    if _is_overridden(suite) or _backends(collector.config, suite):
        return None
    if not suite.__module__.startswith(_NO_CODE):
        raise pytest.Collector.CollectError(
            f"{suite.__qualname__}: for which backend? Valid: --backend {suite.kind}:NAME, or its fixture `backend` "
            "overridden."
        )
    if not _words(collector.config):
        raise pytest.Collector.CollectError(f"{_NO_CODE[:-1]}: for which backend? Valid: --backend KIND:NAME.")
    return []


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a suite for each ``--backend`` of its kind."""
    suite = _suite(metafunc.cls)
    if suite is not None and "backend" in metafunc.fixturenames and not _is_overridden(suite):
        backends = _backends(metafunc.config, suite)
        metafunc.parametrize("backend", backends, indirect=True, ids=[backend.name for backend in backends])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test of a suite its id, mark those expected to fail, and leave the tiers that were asked for."""
    from core.testing.tiers import Needs, facts

    ids = {}
    for item in items:
        suite = _suite(getattr(item, "cls", None))
        if suite is None:
            continue
        needs = Needs.of(item)
        group, name = _identity(item, suite)
        ids[f"{group}::{name}"] = item
        facts(item).update(id=f"{group}::{name}", group=group, tier=needs.tier if needs else "", kind=suite.kind)
    file = config.getoption("--expected-failures")
    if file is not None:
        ExpectedFailures.read(Path(file)).mark(ids, is_selection=_is_selection(config))
    chosen = _chosen_tiers(config)
    if chosen:
        left = [item for item in items if facts(item).get("tier") in chosen]
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        items[:] = left


def _identity(item: Any, suite: type[Suite]) -> tuple[str, str]:
    """The group and the name that make up a test's id, which is the same wherever the kit is installed."""
    name: str = item.originalname
    parameters = item.name.removeprefix(name)[1:-1]
    if _is_overridden(suite):
        return suite.__qualname__, f"{name}[{parameters}]" if parameters else name
    backend = item.callspec.params["backend"]
    parameters = parameters.removeprefix(backend.name).removeprefix("-")
    group = str(backend) if suite.__module__.startswith(_NO_CODE) else f"{suite.__qualname__}[{backend.name}]"
    return group, f"{name}[{parameters}]" if parameters else name


def _suite(obj: object) -> type[Suite] | None:
    from core.testing.suites.base import Suite

    return obj if isinstance(obj, type) and issubclass(obj, Suite) else None


def _is_overridden(suite: type[Suite]) -> bool:
    from core.testing.suites.base import Suite

    return next(base for base in suite.__mro__ if "backend" in vars(base)) is not Suite


def _words(config: pytest.Config) -> list[str]:
    words: list[str] = config.getoption("--backend")
    return words


def _backends(config: pytest.Config, suite: type[Suite]) -> list[BackendUnderTest]:
    """Those of the suite's kind that were given with ``--backend``, each looked for once."""
    from core.testing.backend import BackendUnderTest

    known = config.stash.setdefault(_FOUND, {})
    backends = []
    for word in dict.fromkeys(_words(config)):
        kind, _, name = word.partition(":")
        if kind != suite.kind:
            continue
        if word not in known:
            try:
                known[word] = BackendUnderTest.find(kind, name, os.environ)
            except CoreError as error:
                raise pytest.Collector.CollectError(f"--backend {word!r}: {error}") from error
        backends.append(known[word])
    return backends


def _is_selection(config: pytest.Config) -> bool:
    """Whether single tests were named, so that others of their suites are not even collected."""
    return any("::" in str(argument) for argument in config.invocation_params.args)


def _chosen_tiers(config: pytest.Config) -> list[str]:
    return [tier.strip() for tier in config.getoption("--tiers").split(",") if tier.strip()]


# -- how each one ends -----------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skips are by declaration only; what is tried in spite of a declaration cannot fail."""
    report = yield
    if _suite(getattr(item, "cls", None)) is None:
        return report
    from core.testing.tiers import LACKED, NotRun, SkippedByDeclaration, facts

    error = None if call.excinfo is None else call.excinfo.value
    declaration = item.stash.get(LACKED, None)
    if hasattr(report, "wasxfail"):
        facts(item)["reason"] = report.wasxfail
    elif isinstance(error, SkippedByDeclaration | NotRun):
        outcome = "lacked" if isinstance(error, SkippedByDeclaration) else "not_run"
        facts(item).update(outcome=outcome, reason=str(error.msg))
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {error.msg}")
    elif report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{error}\nskipped without a declaration. Valid: Accelerator.lacks, --expected-failures"
    elif declaration is not None and report.failed and report.when != "teardown":
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {declaration}")
        facts(item).update(outcome="lacked", reason=declaration)
    elif declaration is not None and report.passed and report.when == "call":
        facts(item).update(outcome="works_undeclared", reason=declaration)
    return report


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With ``--isolate``, run the suites in processes of their own."""
    config = session.config
    if not config.getoption("--isolate") or config.getoption("--conformance-child") or config.option.collectonly:
        return None
    return isolate(session, config.getoption("--isolate-limit"))


# -- the report ------------------------------------------------------------------------------------------------------


class _Worker:
    """A worker of pytest-xdist, which collects tests and hands their ends over to the process that keeps the report."""

    def __init__(self) -> None:
        self.deselected = 0

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Count what is not run because the command line says so."""
        self.deselected += len(items)

    def pytest_sessionfinish(self, session: Any) -> None:
        """Hand the number over."""
        session.config.workeroutput[_DESELECTED] = self.deselected


class _Recorder:
    """Keeps the report, in the one process that has every test's end."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one phase of a test."""
        self.report.add(report)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Count what is not run because the command line says so."""
        self.report.deselected += len(items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker of pytest-xdist has counted; each of them collects all tests."""
        counted = getattr(node, "workeroutput", {}).get(_DESELECTED, 0)
        self.report.deselected = max(self.report.deselected, counted)

    def pytest_sessionfinish(self) -> None:
        """Write it."""
        self.report.write()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say in a line or two how each backend did."""
        for line in self.report.summary():
            terminalreporter.write_line(line)
