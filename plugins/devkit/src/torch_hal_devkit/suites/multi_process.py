"""Runs in real processes: they run once, and each test checks a part of what they observed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import attrs
import pytest
from torch import Tensor

from torch_hal import Request, resolve
from torch_hal.errors import CoreError
from torch_hal_devkit import distributed_problem as problem
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.marks import not_run, skip_by_declaration, tier
from torch_hal_devkit.processes import LIMIT, Outcome, run
from torch_hal_devkit.suites.training import TOLERANCES
from torch_hal_devkit.time_limit import TEST_LIMIT

__all__ = ["MULTI_DEVICE", "MultiProcessTests", "Runs", "StartCommand", "refused"]

StartCommand = Callable[[int], Sequence[str]]
"""The command that starts a number of processes; the command that each process runs is appended to it."""

_DONE = pytest.StashKey[dict[str, Outcome]]()
_PRECISIONS = pytest.StashKey[dict[str, list[str]]]()
"""By arguments, what :meth:`MultiProcessTests.run_precisions` found: a test takes longer to ask than to check."""

MULTI_DEVICE = tier("T3", needs=("collectives",), tried=False)
"""The mark of a test that needs two devices or more."""

_SIZES = {"one_device": tier("T2"), "multi_device": MULTI_DEVICE}


@attrs.frozen
class Runs:
    """Runs with given arguments of a front end; each runs once per session."""

    arguments: Mapping[str, Any]
    """The front end's arguments, and ``optimizer``; see :mod:`torch_hal_devkit.observations`."""
    eager: bool
    """Whether the devices support single operations on tensors."""
    precisions: list[str]
    """Further precisions to train in."""
    start: Mapping[str, Any]
    """How processes are started that the strategy does not start itself: arguments of :meth:`run`."""
    directories: pytest.TempPathFactory = attrs.field(repr=False)
    done: dict[str, Outcome] = attrs.field(repr=False)
    limit: float = LIMIT
    """Time limit of each run in seconds."""

    @property
    def devices(self) -> int:
        """The number of devices."""
        return int(self.arguments["devices"])

    @property
    def full_run(self) -> Outcome:
        """The run that succeeds, with all observations."""
        return self.run("full_run", dict(self.arguments), self.eager, self.precisions, **self.start)

    @property
    def three_processes(self) -> Outcome:
        """A run of three processes that exchange drawn values; if the strategy starts them, rank 0 fails at its end.

        So one run shows that an odd number works and how it fails, since starting processes takes longest.
        """
        fails = "started_here" not in self.start
        start = {} if fails else {"started_here": 3}
        return self.run("collectives", {**self.arguments, "devices": 3}, self.eager, fails, **start)

    @property
    def world_size(self) -> int:
        """The number of processes of the full run."""
        return len(self.full_run.observed("who"))

    @property
    def who(self) -> Mapping[str, Any]:
        """What rank 0 of that run reports about itself and the strategy."""
        who: Mapping[str, Any] = self.full_run.values("who")[0]
        return who

    @property
    def shards(self) -> int:
        """The number of parts into which that run split the data."""
        return int(self.who["shards"])

    def by_hand(self, **options: Any) -> tuple[list[float], dict[str, Tensor]]:
        """The expected result of a training: :func:`torch_hal_devkit.distributed_problem.by_hand`."""
        return problem.by_hand(self.shards, maker=self.arguments["optimizer"], **options)

    def run(self, function: str, *arguments: Any, **start: Any) -> Outcome:
        """Run that function of :mod:`torch_hal_devkit.observations`; for ``start`` see :func:`run`."""
        key = json.dumps([function, arguments, start])
        if key not in self.done:
            directory = self.directories.mktemp(f"{function}-{len(self.done)}-")
            called = f"torch_hal_devkit.observations:{function}"
            self.done[key] = run(called, *arguments, directory=directory, limit=self.limit, **start)
        return self.done[key]


def refused(outcome: Outcome) -> str:
    """Why the strategy refused the run's number of processes; empty if it did not."""
    return str(outcome.value_of(0, "refused")) if outcome.ranks and "refused" in outcome.ranks[0] else ""


class MultiProcessTests:
    """Base of the tests that check a run; the suite's fixtures define the run."""

    sizes: ClassVar[tuple[str, ...]] = ("multi_device",)
    """The runs to check: ``"one_device"``, ``"multi_device"``."""

    @pytest.fixture
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of a front end except ``devices``."""
        raise NotImplementedError

    @pytest.fixture
    def optimizer(self) -> str:
        """The ``"module:function"`` that creates a network's optimizer, for strategies that only take their own."""
        return problem.OPTIMIZER

    @pytest.fixture
    def device_counts(self) -> Mapping[str, int | str]:
        """By size, the number of devices of a run, or the declaration by which there is none."""
        return {"one_device": 1, "multi_device": 2}

    @pytest.fixture
    def run_precisions(
        self,
        backend: BackendUnderTest,
        pytestconfig: pytest.Config,
        arguments: Mapping[str, Any],
        device_counts: Mapping[str, int | str],
        launches_processes: bool,
    ) -> list[str]:
        """Further precisions to train in: core's own that are supported, except ``32-true``."""
        made_here = (device_counts["multi_device"] if launches_processes else 1, device_counts["one_device"])
        arguments = {**arguments, "devices": next((count for count in made_here if isinstance(count, int)), 1)}
        known = pytestconfig.stash.setdefault(_PRECISIONS, {})
        key = json.dumps([dict(arguments), dict(backend.environ)], default=repr)
        if key not in known:
            known[key] = [
                name
                for name in TOLERANCES
                if name != "32-true" and _is_supported(backend, {**arguments, "precision": name})
            ]
        return known[key]

    @pytest.fixture
    def launches_processes(self) -> bool:
        """Whether the strategy starts its processes; otherwise the kit starts them as torchrun does."""
        return True

    @pytest.fixture
    def start_command(self) -> StartCommand | None:
        """The command for processes that neither the strategy nor torchrun starts; see :data:`StartCommand`."""
        return None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Check a run of each size."""
        if "size" in metafunc.fixturenames:
            metafunc.parametrize("size", [pytest.param(size, marks=_SIZES[size]) for size in self.sizes])

    @pytest.fixture
    def runs(self, make_runs: Any, size: str) -> Runs:
        """The runs of the test's size."""
        made: Runs = make_runs(size)
        return made

    @pytest.fixture
    def multi_device(self, make_runs: Any) -> Runs:
        """The runs on several devices."""
        made: Runs = make_runs("multi_device")
        return made

    @pytest.fixture
    def make_runs(
        self,
        backend: BackendUnderTest,
        pytestconfig: pytest.Config,
        tmp_path_factory: pytest.TempPathFactory,
        arguments: Mapping[str, Any],
        optimizer: str,
        device_counts: Mapping[str, int | str],
        run_precisions: list[str],
        launches_processes: bool,
        start_command: StartCommand | None,
        devices: int | None,
        unsupported: Mapping[str, str],
    ) -> Any:
        """Return a function that creates the runs of a size."""

        def make(size: str) -> Runs:
            if backend.is_registered_in_code:
                not_run(f"{backend} was registered in code, and cannot be created in another process")
            count = device_counts[size]
            if isinstance(count, str):
                skip_by_declaration(count)
            if devices is not None and devices < count:
                not_run(f"{devices} device(s) found; the test needs {count}")
            start: dict[str, Any] = {}
            if not launches_processes and count > 1:
                start = {"start_command": start_command(count)} if start_command else {"started_here": count}
            done = pytestconfig.stash.setdefault(_DONE, {})
            run_arguments = {**arguments, "devices": count, "optimizer": optimizer}
            if pytestconfig.getoption("--quick", default=False):
                run_arguments["quick"] = True
            limit = pytestconfig.getoption("--test-limit", default=TEST_LIMIT) * LIMIT / TEST_LIMIT
            is_eager = "eager" not in unsupported
            return Runs(run_arguments, is_eager, run_precisions, start, tmp_path_factory, done, limit)

        return make

    @pytest.fixture
    def custom_loop(self, runs: Runs, unsupported: Mapping[str, str]) -> Runs:
        """The runs of the test's size, if the strategy and the devices support custom loops."""
        if not runs.eager:
            skip_by_declaration(f"eager is not supported: {unsupported['eager']}")
        if not runs.who["supports_custom_loop"]:
            skip_by_declaration("supports_custom_loop is False: the strategy runs whole training steps only")
        return runs

    @pytest.fixture
    def eager(self, runs: Runs, unsupported: Mapping[str, str]) -> Runs:
        """The runs of the test's size, if the devices support single operations on tensors."""
        if not runs.eager:
            skip_by_declaration(f"eager is not supported: {unsupported['eager']}")
        return runs


def _is_supported(backend: BackendUnderTest, arguments: Mapping[str, Any]) -> bool:
    try:
        resolve(Request.read(environ=backend.environ, **arguments), backend.registry)
    except CoreError:
        return False
    return True
