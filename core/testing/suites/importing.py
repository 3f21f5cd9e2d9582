"""T1, of every kind: importing a backend's class changes nothing for the rest of the process."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from core.discovery.loading import import_target, target_name
from core.kinds import KINDS
from core.testing.backend import BackendUnderTest
from core.testing.fresh import Answer, ask
from core.testing.suites.base import reference
from core.testing.tiers import tier

__all__ = ["ImportTests", "asked"]

_ASPECTS = (
    "environment variables",
    "working directory",
    "signal handlers",
    "default dtype",
    "default device",
    "random state",
    "number of threads",
    "settings of torch",
    "devices in use",
)


class ImportTests:
    """Tests of tier T1."""

    @tier("T1")
    @pytest.mark.parametrize("aspect", _ASPECTS)
    def test_importing_the_class_changes_nothing(self, backend: BackendUnderTest, aspect: str) -> None:
        """Importing the target leaves the process as it was, torch having been imported before."""
        changes = asked("import_changes", backend).value
        assert aspect not in changes, (
            f"importing {target_name(backend.spec.target)} changes the {aspect}: {changes[aspect]}. Expected: no change"
        )

    @tier("T1")
    def test_importing_the_class_prints_nothing(self, backend: BackendUnderTest) -> None:
        """Importing the target writes nothing to the user's terminal, be it from Python or from a library."""
        printed = asked("import_changes", backend).output.strip()
        assert not printed, f"importing {target_name(backend.spec.target)} prints {printed[:500]!r}. Expected: nothing"

    @tier("T1")
    def test_the_class_is_of_its_kind(self, backend: BackendUnderTest) -> None:
        """The target is a class of the backend's kind with nothing left to define."""
        base = import_target(KINDS[backend.kind].base)
        assert issubclass(backend.load(), base)

    @tier("T1")
    def test_it_is_made_from_the_spec(self, backend: BackendUnderTest) -> None:
        """An instance is made from the spec's ``init_args`` alone, and goes by the spec's name."""
        made = backend.create()
        assert made.name == backend.spec.name, f"its name is {made.name!r}. Expected: {backend.spec.name!r}"


def asked(question: str, backend: BackendUnderTest, *more: Any, **options: Any) -> Answer:
    """A question of :mod:`core.testing.questions` about ``backend``; the same one is asked once."""
    return _asked(question, json.dumps([reference(backend), *more]), json.dumps(options))


@cache
def _asked(question: str, arguments: str, options: str) -> Answer:
    return ask(f"core.testing.questions:{question}", *json.loads(arguments), **json.loads(options))
