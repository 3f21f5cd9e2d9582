"""T1 of every kind: importing a backend's class changes nothing else in the process."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from torch_hal.discovery.loading import import_target, target_name
from torch_hal.kinds import KINDS
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.fresh import Answer, ask
from torch_hal_devkit.marks import tier
from torch_hal_devkit.process_state import ASPECTS
from torch_hal_devkit.suites.base import reference

__all__ = ["ImportTests", "probed"]


class ImportTests:
    """Tests of tier T1."""

    @tier("T1")
    @pytest.mark.parametrize("aspect", ASPECTS)
    def test_importing_the_class_changes_nothing(self, backend: BackendUnderTest, aspect: str) -> None:
        """Importing the target leaves the process unchanged, if torch is already imported."""
        changes = probed("import_changes", backend).value
        assert aspect not in changes, (
            f"importing {target_name(backend.spec.target)} changes the {aspect}: {changes[aspect]}. Expected: no change"
        )

    @tier("T1")
    def test_importing_the_class_prints_nothing(self, backend: BackendUnderTest) -> None:
        """Importing the target prints nothing, from Python or from a library."""
        printed = probed("import_changes", backend).output.strip()
        assert not printed, f"importing {target_name(backend.spec.target)} prints {printed[:500]!r}. Expected: nothing"

    @tier("T1")
    def test_the_class_is_of_its_kind(self, backend: BackendUnderTest) -> None:
        """The target is a class of the backend's kind."""
        base = import_target(KINDS[backend.kind].base)
        assert issubclass(backend.load(), base)

    @tier("T1")
    def test_it_is_made_from_the_spec(self, backend: BackendUnderTest) -> None:
        """The spec's ``init_args`` suffice to create an instance, which has the spec's name."""
        made = backend.create()
        assert made.name == backend.spec.name, f"its name is {made.name!r}. Expected: {backend.spec.name!r}"


def probed(probe: str, backend: BackendUnderTest, *more: Any, **options: Any) -> Answer:
    """Run a function of :mod:`torch_hal_devkit.probes` on ``backend``; results are cached."""
    return _probed(probe, json.dumps([reference(backend), *more]), json.dumps(options))


@cache
def _probed(probe: str, arguments: str, options: str) -> Answer:
    return ask(f"torch_hal_devkit.probes:{probe}", *json.loads(arguments), **json.loads(options))
