"""The pytest plugin of the conformance kit, enabled with ``-p torch_hal_devkit.plugin``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from torch_hal.errors import CoreError, quoted
from torch_hal.kinds import KINDS
from torch_hal_devkit.expected import ExpectedFailures
from torch_hal_devkit.isolation import Child, isolate
from torch_hal_devkit.progress import Progress
from torch_hal_devkit.report import SUFFIXES, Report
from torch_hal_devkit.time_limit import TEST_LIMIT, limited

if TYPE_CHECKING:
    from torch_hal_devkit.backend import BackendUnderTest
    from torch_hal_devkit.suites.base import Suite

for _name in ("torch_hal_devkit.suites", "torch_hal_devkit.problem"):
    if _name not in sys.modules:
        pytest.register_assert_rewrite(_name)

REPORTS = "CORE_CONFORMANCE_REPORTS"
"""The environment variable for a folder to which every run of the kit writes its report, as JSON."""

_NO_CODE = "torch_hal_devkit.suite."
_TIERS = ("T0", "T1", "T2", "T3")
_DESELECTED = "conformance_deselected"
_FOUND = pytest.StashKey[dict[str, "BackendUnderTest"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The kit's options."""
    group = parser.getgroup("conformance", "torch-hal's conformance kit, see docs/conformance.md")
    add = group.addoption
    add("--backend", action="append", default=[], metavar="KIND:NAME", help="a backend to test; repeatable")
    add("--backend-devices", type=int, metavar="N", help="number of devices of this machine; fewer are a failure")
    add("--tiers", default="", metavar="T0,T1,...", help="run only tests of these tiers")
    add("--quick", action="store_true", help="run a first part of the tests, in about a minute")
    add("--show-progress", action="store_true", help="show how many tests are done, and about how long the rest takes")
    add("--hardware", default="", metavar="TEXT", help="what this runs on, or 'simulated'; shown in the report")
    add(
        "--hide-devices",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable that hides all devices",
    )
    add("--conformance-report", action="append", default=[], metavar="PATH", help="write .json or .md; repeatable")
    add("--expected-failures", metavar="FILE", help="TOML file of known failures: test id = reason")
    add("--isolate", action="store_true", help="run each tier of a suite in a separate process")
    add(
        "--isolate-limit",
        type=float,
        default=300.0,
        metavar="S",
        help="time limit of one test with --isolate, in seconds",
    )
    add(
        "--test-limit",
        type=float,
        default=TEST_LIMIT,
        metavar="S",
        help="time limit of each test in seconds; a run of several processes may take three fifths of it",
    )
    add("--conformance-child", metavar="DIR", help="internal: set in the processes of --isolate")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, and register what they need."""
    config.addinivalue_line("markers", "conformance(tier, needs, tried): a test of the conformance kit")
    _check_options(config)
    child = config.getoption("--conformance-child")
    if child is not None:
        config.pluginmanager.register(Child(Path(child)), "conformance-child")
    elif hasattr(config, "workerinput"):
        config.pluginmanager.register(_Worker(), "conformance-worker")
    else:
        progress = Progress(config) if config.getoption("--show-progress") else None
        recorder = _Recorder(Report(_report_paths(config), is_selection=_is_selection(config)), progress)
        config.pluginmanager.register(recorder, "conformance-report")


def _report_paths(config: pytest.Config) -> list[str]:
    """The report's files: each ``--conformance-report``, and one in the folder of ``REPORTS``."""
    paths: list[str] = list(config.getoption("--conformance-report"))
    if folder := os.environ.get(REPORTS):
        paths.append(os.path.join(folder, f"{time.time_ns()}.json"))
    return paths


def _check_options(config: pytest.Config) -> None:
    for tier in _chosen_tiers(config):
        if tier not in _TIERS:
            raise pytest.UsageError(f"--tiers: unknown tier {tier!r}. Valid: {quoted(_TIERS)}, separated by commas.")
    for option in config.getoption("--backend"):
        kind, _, name = option.partition(":")
        if not name or kind not in KINDS:
            raise pytest.UsageError(
                f"--backend {option!r}: expected KIND:NAME, such as 'accelerator:{name or kind}', with KIND one of "
                f"{quoted(KINDS)}."
            )
    for option in config.getoption("--hide-devices"):
        if "=" not in option:
            raise pytest.UsageError(f"--hide-devices {option!r}: expected NAME=VALUE.")
    for path in config.getoption("--conformance-report"):
        if Path(path).suffix not in SUFFIXES:
            raise pytest.UsageError(
                f"--conformance-report {path!r}: expected a file name that ends with one of {quoted(SUFFIXES)}."
            )
    if config.getoption("--test-limit") <= 0:
        raise pytest.UsageError("--test-limit: must be more than 0 seconds.")
    if config.getoption("--isolate") and config.getoption("numprocesses", None):
        raise pytest.UsageError(
            "--isolate and -n cannot be combined: both choose the process of a test. Use one of them."
        )


# -- which tests there are -------------------------------------------------------------------------------------------


def pytest_pycollect_makeitem(collector: Any, obj: object) -> list[Any] | None:
    """Skip the kit's own suites of kinds without a ``--backend``, and base classes."""
    suite = _suite(obj)
    if suite is None:
        return None
    if obj.__module__.startswith("torch_hal_devkit.suites."):
        return []
    if _is_overridden(suite) or _backends(collector.config, suite):
        return None
    if not suite.__module__.startswith(_NO_CODE):
        raise pytest.Collector.CollectError(
            f"{suite.__qualname__}: no backend given. Pass --backend {suite.kind}:NAME, or override its fixture "
            "`backend`."
        )
    if not _backend_options(collector.config):
        raise pytest.Collector.CollectError(f"{_NO_CODE[:-1]}: no backend given. Pass --backend KIND:NAME.")
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
    """Give each test of a suite its id, mark expected failures, and deselect tiers that were not requested."""
    from torch_hal_devkit.marks import Needs, facts

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
    chosen, left = _chosen_tiers(config), list(items)
    if chosen:
        left = [item for item in left if facts(item).get("tier") in chosen]
    if config.getoption("--quick"):
        left = [item for item in left if _is_quick(item)]
    if len(left) < len(items):
        kept = set(left)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = left
    for item in items if hasattr(config, "workerinput") else ():  # only xdist, which has workers, knows the mark
        if "group" in facts(item):
            item.add_marker(pytest.mark.xdist_group(f"{facts(item)['group']} {_share(item)}"))


def _is_quick(item: Any) -> bool:
    from torch_hal_devkit.marks import facts
    from torch_hal_devkit.quick import is_quick

    suite, tier = _suite(getattr(item, "cls", None)), facts(item).get("tier", "")
    return suite is None or is_quick(item.originalname, tier, item.name, is_single=_runs_alone(item, suite))


def _runs_alone(item: Any, suite: type[Suite]) -> bool:
    """Whether the backend runs on one process only."""
    if suite.kind != "strategy" or _is_overridden(suite):
        return False
    try:
        backend = item.callspec.params["backend"]
        return bool(backend.spec.max_processes == 1 or backend.load().max_processes == 1)
    except CoreError:
        return False


def _share(item: Any) -> str:
    """What may run at the same time as the rest: tests without a device, and the runs of each size on the host."""
    from torch_hal_devkit.marks import facts

    if facts(item).get("tier") in ("T0", "T1"):
        return "without a device"
    size = next((size for size in ("multi_device", "one_device") if size in item.name), "")
    return size if facts(item).get("kind") == "strategy" and _is_on_the_host(item) else "on its devices"


def _is_on_the_host(item: Any) -> bool:
    """Whether any number of processes shares what a strategy runs on: then its runs do not disturb each other."""
    from torch_hal.accelerators import CPUAccelerator

    if _is_overridden(item.cls):
        return False
    backend = item.callspec.params["backend"]
    try:
        supported = backend.load().accelerators or backend.spec.accelerators
    except CoreError:
        return False
    from torch_hal_devkit.suites.accelerator import present_accelerator

    if supported is not None:
        return tuple(supported) == ("cpu",)
    return issubclass(present_accelerator(backend).load(), CPUAccelerator)


def _identity(item: Any, suite: type[Suite]) -> tuple[str, str]:
    """The group and the name that form a test's id, independent of where the kit is installed."""
    name: str = item.originalname
    parameters = item.name.removeprefix(name)[1:-1]
    if _is_overridden(suite):
        return suite.__qualname__, f"{name}[{parameters}]" if parameters else name
    backend = item.callspec.params["backend"]
    parameters = parameters.removeprefix(backend.name).removeprefix("-")
    group = str(backend) if suite.__module__.startswith(_NO_CODE) else f"{suite.__qualname__}[{backend.name}]"
    return group, f"{name}[{parameters}]" if parameters else name


def _suite(obj: object) -> type[Suite] | None:
    from torch_hal_devkit.suites.base import Suite

    return obj if isinstance(obj, type) and issubclass(obj, Suite) else None


def _is_overridden(suite: type[Suite]) -> bool:
    from torch_hal_devkit.suites.base import Suite

    return next(base for base in suite.__mro__ if "backend" in vars(base)) is not Suite


def _backend_options(config: pytest.Config) -> list[str]:
    options: list[str] = config.getoption("--backend")
    return options


def _backends(config: pytest.Config, suite: type[Suite]) -> list[BackendUnderTest]:
    """The backends of the suite's kind that were given with ``--backend``, each looked up once."""
    from torch_hal_devkit.backend import BackendUnderTest

    known = config.stash.setdefault(_FOUND, {})
    backends = []
    for option in dict.fromkeys(_backend_options(config)):
        kind, _, name = option.partition(":")
        if kind != suite.kind:
            continue
        if option not in known:
            try:
                known[option] = BackendUnderTest.find(kind, name, os.environ)
            except CoreError as error:
                raise pytest.Collector.CollectError(f"--backend {option!r}: {error}") from error
        backends.append(known[option])
    return backends


def _is_selection(config: pytest.Config) -> bool:
    """Whether the command line names single tests, so that others of their suites are not collected."""
    return any("::" in str(argument) for argument in config.invocation_params.args)


def _chosen_tiers(config: pytest.Config) -> list[str]:
    return [tier.strip() for tier in config.getoption("--tiers").split(",") if tier.strip()]


# -- how each one ends -----------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Allow skips by declaration only; a test of an unsupported feature cannot fail."""
    report = yield
    if _suite(getattr(item, "cls", None)) is None:
        return report
    from torch_hal_devkit.marks import UNSUPPORTED, NotRun, SkippedByDeclaration, facts

    error = None if call.excinfo is None else call.excinfo.value
    declaration = item.stash.get(UNSUPPORTED, None)
    if hasattr(report, "wasxfail"):
        facts(item)["reason"] = report.wasxfail
    elif isinstance(error, SkippedByDeclaration | NotRun):
        outcome = "unsupported" if isinstance(error, SkippedByDeclaration) else "not_run"
        facts(item).update(outcome=outcome, reason=str(error.msg))
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {error.msg}")
    elif report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{error}\nskipped without a declaration. Use Accelerator.unsupported or --expected-failures"
    elif declaration is not None and report.failed and report.when != "teardown":
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {declaration}")
        facts(item).update(outcome="unsupported", reason=declaration)
    elif declaration is not None and report.passed and report.when == "call":
        facts(item).update(outcome="works_undeclared", reason=declaration)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Stop a test at its time limit; at its end, fail it if a call of the backend has changed what it may not."""
    if _suite(getattr(item, "cls", None)) is None:
        yield
        return
    from torch_hal_devkit.suites.base import check_watch

    with limited(item.config.getoption("--test-limit")):
        yield
    check_watch(item)


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With ``--isolate``, run the suites in separate processes."""
    config = session.config
    if not config.getoption("--isolate") or config.getoption("--conformance-child") or config.option.collectonly:
        return None
    return isolate(session, config.getoption("--isolate-limit"))


# -- the report ------------------------------------------------------------------------------------------------------


class _Worker:
    """A worker of pytest-xdist, which sends results to the process that writes the report."""

    def __init__(self) -> None:
        self.deselected = 0

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Count what is not run because the command line says so."""
        self.deselected += len(items)

    def pytest_sessionfinish(self, session: Any) -> None:
        """Send the number."""
        session.config.workeroutput[_DESELECTED] = self.deselected


class _Recorder:
    """Keeps the report, in the process that receives all results."""

    def __init__(self, report: Report, progress: Progress | None = None) -> None:
        self.report = report
        self.progress = progress
        self.ids: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record one phase of a test."""
        self.report.add(report)
        if self.progress is not None and report.when == "teardown":
            self.progress.done(report.nodeid)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The tests are known."""
        if self.progress is not None and session.items:
            self.progress.begin([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """A worker of pytest-xdist knows the tests."""
        self.ids = ids
        if self.progress is not None:
            self.progress.begin(ids)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Count what is not run because the command line says so."""
        self.report.deselected += len(items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Record what a worker of pytest-xdist has counted; each worker collects all tests."""
        counted = getattr(node, "workeroutput", {}).get(_DESELECTED, 0)
        self.report.deselected = max(self.report.deselected, counted)

    def pytest_sessionfinish(self) -> None:
        """Write the report."""
        self.report.arrange(self.ids)
        self.report.write()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print a line or two per backend."""
        for line in self.report.summary():
            terminalreporter.write_line(line)
