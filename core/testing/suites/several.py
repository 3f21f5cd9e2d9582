"""Runs in real processes: they are started once, and each test judges a part of what they observed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import attrs
import pytest
from torch import Tensor

from core import Request, resolve
from core.errors import CoreError
from core.testing import joint
from core.testing.backend import BackendUnderTest
from core.testing.processes import Outcome, run
from core.testing.suites.training import TOLERANCES
from core.testing.tiers import not_run, skip_by_declaration, tier

__all__ = ["SEVERAL", "Runs", "RunTests", "StartCommand"]

StartCommand = Callable[[int], Sequence[str]]
"""The words of a command that starts so many processes, to which the command that each is to run is added."""

_DONE = pytest.StashKey[dict[str, Outcome]]()

SEVERAL = tier("T3", needs=("collectives",), tried=False)
"""The mark of a test that takes several devices."""

_SIZES = {"one": tier("T2"), "several": SEVERAL}


@attrs.frozen
class Runs:
    """The runs of a front end's words, each of them made once a session."""

    words: Mapping[str, Any]
    """Those of the front end, and ``optimizer``; see :mod:`core.testing.observations`."""
    eager: bool
    """Whether the devices run single operations on tensors."""
    precisions: list[str]
    """Further ones that are trained in."""
    start: Mapping[str, Any]
    """How its processes are started that the strategy does not start: further arguments of :meth:`run`."""
    directories: pytest.TempPathFactory = attrs.field(repr=False)
    done: dict[str, Outcome] = attrs.field(repr=False)

    @property
    def devices(self) -> int:
        """How many devices they take."""
        return int(self.words["devices"])

    @property
    def everything(self) -> Outcome:
        """The run with all that is observed of one that ends well."""
        return self.run("everything", dict(self.words), self.eager, self.precisions, **self.start)

    @property
    def world_size(self) -> int:
        """How many processes that run had."""
        return len(self.everything.ranks)

    @property
    def who(self) -> Mapping[str, Any]:
        """What that run's process 0 says of itself and of the strategy."""
        said: Mapping[str, Any] = self.everything.values("who")[0]
        return said

    @property
    def shards(self) -> int:
        """In how many parts that run split the data."""
        return int(self.who["shards"])

    def by_hand(self, **options: Any) -> tuple[list[float], dict[str, Tensor]]:
        """What must come out of a training: :func:`core.testing.joint.by_hand`."""
        return joint.by_hand(self.shards, maker=self.words["optimizer"], **options)

    def run(self, function: str, *arguments: Any, **start: Any) -> Outcome:
        """A run of that function of :mod:`core.testing.observations`; further arguments as of :func:`run`."""
        key = json.dumps([function, arguments, start])
        if key not in self.done:
            directory = self.directories.mktemp(f"{function}-{len(self.done)}-")
            called = f"core.testing.observations:{function}"
            self.done[key] = run(called, *arguments, directory=directory, **start)
        return self.done[key]


class RunTests:
    """Base of the tests that judge a run; what the run is of, a suite says in its fixtures."""

    sizes: ClassVar[tuple[str, ...]] = ("several",)
    """Of which devices there is a run to judge: ``"one"``, ``"several"``."""

    @pytest.fixture
    def words(self) -> Mapping[str, Any]:
        """The words of a front end but for ``devices``."""
        raise NotImplementedError

    @pytest.fixture
    def optimizer(self) -> str:
        """What makes the optimizer of a network, ``"module:function"``; for what takes none but its own."""
        return joint.OPTIMIZER

    @pytest.fixture
    def counts(self) -> Mapping[str, int | str]:
        """By size, how many devices a run takes; or by which declaration there is none."""
        return {"one": 1, "several": 2}

    @pytest.fixture
    def run_precisions(
        self, backend: BackendUnderTest, words: Mapping[str, Any], counts: Mapping[str, int | str], starts_itself: bool
    ) -> list[str]:
        """Further precisions that a run trains in: those of core's own that are served, but for ``32-true``."""
        made_here = (counts["several"] if starts_itself else 1, counts["one"])
        words = {**words, "devices": next((count for count in made_here if isinstance(count, int)), 1)}
        return [name for name in TOLERANCES if name != "32-true" and _is_served(backend, {**words, "precision": name})]

    @pytest.fixture
    def starts_itself(self) -> bool:
        """Whether the strategy starts the processes of a run of several; else they are started as torchrun does."""
        return True

    @pytest.fixture
    def start_command(self) -> StartCommand | None:
        """What starts the processes where neither the strategy nor torchrun does; see :data:`StartCommand`."""
        return None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Judge a run of each size."""
        if "size" in metafunc.fixturenames:
            metafunc.parametrize("size", [pytest.param(size, marks=_SIZES[size]) for size in self.sizes])

    @pytest.fixture
    def runs(self, make_runs: Any, size: str) -> Runs:
        """The runs of the test's size."""
        made: Runs = make_runs(size)
        return made

    @pytest.fixture
    def several(self, make_runs: Any) -> Runs:
        """The runs of several devices."""
        made: Runs = make_runs("several")
        return made

    @pytest.fixture
    def make_runs(
        self,
        backend: BackendUnderTest,
        pytestconfig: pytest.Config,
        tmp_path_factory: pytest.TempPathFactory,
        words: Mapping[str, Any],
        optimizer: str,
        counts: Mapping[str, int | str],
        run_precisions: list[str],
        starts_itself: bool,
        start_command: StartCommand | None,
        devices: int | None,
        lacks: Mapping[str, str],
    ) -> Any:
        """Makes the runs of a size."""

        def make(size: str) -> Runs:
            if backend.is_registered_in_code:
                not_run(f"{backend} was registered in code, and cannot be made in another process")
            count = counts[size]
            if isinstance(count, str):
                skip_by_declaration(count)
            if devices is not None and devices < count:
                not_run(f"{devices} device(s) of it here; it takes {count}")
            start: dict[str, Any] = {}
            if not starts_itself and count > 1:
                start = {"start_command": start_command(count)} if start_command else {"started_here": count}
            done = pytestconfig.stash.setdefault(_DONE, {})
            run_words = {**words, "devices": count, "optimizer": optimizer}
            return Runs(run_words, "eager" not in lacks, run_precisions, start, tmp_path_factory, done)

        return make

    @pytest.fixture
    def own_loop(self, runs: Runs, lacks: Mapping[str, str]) -> Runs:
        """The runs of the test's size, of a strategy and devices that serve a loop of one's own."""
        if not runs.eager:
            skip_by_declaration(f"lacks eager: {lacks['eager']}")
        if not runs.who["serves_own_loop"]:
            skip_by_declaration("serves_own_loop is False: it runs whole training steps only")
        return runs

    @pytest.fixture
    def eager(self, runs: Runs, lacks: Mapping[str, str]) -> Runs:
        """The runs of the test's size, on devices that run single operations on tensors."""
        if not runs.eager:
            skip_by_declaration(f"lacks eager: {lacks['eager']}")
        return runs


def _is_served(backend: BackendUnderTest, words: Mapping[str, Any]) -> bool:
    try:
        resolve(Request.read(environ=backend.environ, **words), backend.registry)
    except CoreError:
        return False
    return True
