"""The table of the contract is complete, and names tests that there are."""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import random
from collections.abc import Mapping

import pytest
from torch_hal_devkit.contract import CONTRACT, PROPERTIES
from torch_hal_devkit.process_state import ASPECTS, changes, recorded, unusual
from torch_hal_devkit.watch import watched

from torch_hal import ClusterEnvironment, Precision
from torch_hal.discovery.loading import import_target
from torch_hal.kinds import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_each_method_has_its_row(kind: str) -> None:
    """Each public method and property of a base class is in the table, and nothing else is."""
    base = import_target(KINDS[kind].base)
    public = {
        name
        for name in dir(base)
        if not name.startswith("_")
        and (callable(getattr(base, name)) or isinstance(inspect.getattr_static(base, name), property))
    }
    assert set(CONTRACT[kind]) == public


@pytest.mark.parametrize("kind", KINDS)
def test_each_cell_is_tested(kind: str) -> None:
    """Each name in the table is a test of the kind's suite; a method without a test has a reason."""
    suite = getattr(
        importlib.import_module(f"torch_hal_devkit.suites.{kind}"),
        f"{KINDS[kind].base.rpartition(':')[2]}Suite",
    )
    for method, row in CONTRACT[kind].items():
        assert bool(row.tests) != bool(row.untested), method
        assert set(row.tests) <= set(PROPERTIES), method
        assert set(row.may_change) <= set(ASPECTS), method
        missing = [name for names in row.tests.values() for name in names if not hasattr(suite, f"test_{name}")]
        assert not missing, f"{kind}.{method} names tests that are not there: {missing}"


def test_an_unusual_process_ends_as_it_began() -> None:
    """Everything that is made unusual is so, is seen as a change, and is restored."""
    before = recorded()
    with unusual():
        within = changes(before, recorded())
    assert not changes(before, recorded())
    assert {"default dtype", "settings of torch", "garbage collector", "settings of Python", "random state"} <= set(
        within
    )
    assert {"environment variables", "signal handlers", "logging", "warnings filters", "exception hooks"} <= set(within)


class _Sets(Precision):
    def scale_loss(self, loss: int) -> int:  # type: ignore[override]
        random.seed(3)
        return self.scaled(loss)

    def scaled(self, loss: int) -> int:
        return loss


class _Quiet(_Sets):
    def scale_loss(self, loss: int) -> int:  # type: ignore[override]
        return loss


def test_a_watch_sees_the_calls_of_its_class() -> None:
    """A call that changes what it may not is told; those of other classes are not, nor is anything afterwards."""
    with watched("precision", _Sets) as found:
        assert _Sets().scale_loss(2) == 2
        assert _Quiet.overrides(_Quiet(), "scale_loss")
        assert not Precision().overrides("scale_loss")
    assert [line.partition(" changes ")[0] for line in found] == ["_Sets.scale_loss()"]
    with watched("precision", _Quiet) as quiet:
        _Sets().scale_loss(2)
        _Quiet().scale_loss(2)
    assert not quiet
    _Sets().scale_loss(2)
    assert len(found) == 1
    assert not hasattr(Precision.scale_loss, "__wrapped__")


class _SpoilsThrees(Precision):
    def scale_loss(self, loss: int) -> int:  # type: ignore[override]
        if loss == 3:
            random.random()
        return loss


def test_a_watch_compares_some_of_many_calls() -> None:
    """The first calls of a method are compared, and of later ones some: comparing all would take as long as a run."""
    noticed = []
    for number in range(40):
        with watched("precision", _SpoilsThrees) as found:
            for loss in [2] * number + [3]:
                _SpoilsThrees().scale_loss(loss)
        noticed.append(bool(found))
    assert all(noticed[:4])
    assert any(noticed[4:])
    assert not all(noticed[4:])


class _Spoils(ClusterEnvironment):
    creates_processes_externally = main_address = main_port = world_size = 1  # type: ignore[assignment]
    local_world_size = local_rank = node_rank = 1

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        os.environ["KIT_SPOILT"] = "1"
        return True

    @property
    def global_rank(self) -> int:
        gc.disable()
        return 0


def test_a_watch_sees_properties_and_static_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A property and a static method are watched as methods are."""
    monkeypatch.delenv("KIT_SPOILT", raising=False)
    with watched("cluster_environment", _Spoils) as found:
        assert _Spoils.detect({})
        assert _Spoils({}).global_rank == 0
    gc.enable()
    monkeypatch.delenv("KIT_SPOILT")
    assert [line.partition(":")[0] for line in found] == [
        "_Spoils.detect() changes the environment variables",
        "_Spoils.global_rank() changes the garbage collector",
    ]
