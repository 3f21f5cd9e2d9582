"""T0, of every kind: what a plugin's metadata and hooks say, before torch or hardware are there."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from core.discovery.scan import CORE, Row
from core.discovery.versions import unmet
from core.kinds import KINDS
from core.testing.backend import BackendUnderTest
from core.testing.fresh import Answer, ask
from core.testing.tiers import not_run, tier

__all__ = ["ACTIVATION_LIMIT", "DETECTION_LIMIT", "MetadataTests"]

ACTIVATION_LIMIT = 2.0
"""Seconds that a hook module may take: it runs in every program that asks for one of its names."""
DETECTION_LIMIT = 5.0
"""Seconds that ``detect`` may take: core waits no longer for it."""

_LONGEST = 100


class MetadataTests:
    """Tests of tier T0."""

    @pytest.fixture
    def row(self, backend: BackendUnderTest) -> Row:
        """What is declared in metadata."""
        if backend.is_registered_in_code:
            not_run(f"{backend} was registered in code, and has no metadata")
        return backend.row

    @tier("T0")
    def test_it_is_usable(self, row: Row) -> None:
        """Nothing keeps the installed backend from being asked for by its name."""
        assert row.state == "installed", (
            f"{row.kind} {row.name!r} of {row.origin} is {row.state}: {row.reason}. Expected: installed"
        )

    @tier("T0")
    def test_it_requires_torch_hal(self, row: Row) -> None:
        """The distribution says which torch-hal it works with, and this one is among them."""
        if row.is_core:
            not_run(f"it is {CORE}'s own")
        assert row.requires, (
            f"{row.origin} does not say which {CORE} it works with. Expected in its pyproject.toml: "
            f'dependencies = ["{CORE}>=0.1,<1"]'
        )
        own = next(r.version for r in BackendUnderTest.find("accelerator", "cpu", {}).registry.rows() if r.is_core)
        for requirement in row.requires:
            assert not unmet(requirement, own), f"{row.origin} {unmet(requirement, own)}; this is {CORE} {own}"

    @tier("T0")
    def test_listing_imports_nothing(self, row: Row) -> None:
        """``python -m core.list`` shows the backend, and imports neither its package nor torch."""
        package = row.module if row.is_core else row.module.partition(".")[0]
        answer = ask("core.testing.questions:listed", [package, "torch"])
        assert row.name in answer.output, f"python -m core.list does not show {row.name!r}:\n{answer.output}"
        assert answer.value == [], (
            f"python -m core.list imports {answer.value}. Expected: nothing of {package}, no torch"
        )

    @tier("T0")
    def test_names_in_metadata_are_those_of_the_hooks(self, backend: BackendUnderTest, row: Row) -> None:
        """The hooks of the plugin's module hand over each backend that metadata declares for it, and no other."""
        failures = _activated(backend).value["failures"]
        assert not failures, f"{row.module} and the entry points of {row.origin} do not agree: " + "; ".join(
            f"{which}: {reason}" for which, reason in failures.items()
        )

    @tier("T0")
    def test_the_hook_module_imports_no_torch(self, backend: BackendUnderTest, row: Row) -> None:
        """Asking for a name does not cost an import of torch."""
        assert not _activated(backend).value["torch"], (
            f"importing {row.module} and asking its hooks imports torch. Expected: torch is imported by the target only"
        )

    @tier("T0")
    def test_the_hook_module_prints_nothing(self, backend: BackendUnderTest, row: Row) -> None:
        """Activating the plugin writes nothing to the user's terminal, be it from Python or from a library."""
        answer = _activated(backend)
        printed = (answer.value["output"] or answer.output).strip()
        assert not printed, f"importing {row.module} and asking its hooks prints {printed[:500]!r}. Expected: nothing"

    @tier("T0")
    def test_the_hook_module_is_quick(self, backend: BackendUnderTest, row: Row) -> None:
        """Activating the plugin is over in bounded time."""
        seconds = _activated(backend).value["seconds"]
        assert seconds <= ACTIVATION_LIMIT, (
            f"importing and asking {row.module} takes {seconds:.1f} s. Expected: {ACTIVATION_LIMIT:g} s at most"
        )

    @tier("T0")
    def test_the_description(self, backend: BackendUnderTest) -> None:
        """The spec describes the backend in one line, for listings."""
        text = backend.spec.description
        one_line = text == text.strip() and text.isprintable() and 0 < len(text) <= _LONGEST
        assert one_line, f"description={text!r} of {backend}. Expected: one line of 1 to {_LONGEST} characters"

    @tier("T0")
    def test_the_aliases(self, backend: BackendUnderTest) -> None:
        """The spec's aliases are further words: not its name, and none twice."""
        spec = backend.spec
        assert spec.name not in spec.aliases, f"aliases={spec.aliases} of {backend}: its own name is no alias"
        assert len(set(spec.aliases)) == len(spec.aliases), f"aliases={spec.aliases} of {backend}: one is there twice"

    @tier("T0")
    def test_the_target_can_be_named(self, backend: BackendUnderTest, row: Row) -> None:
        """The spec names its class as ``"module:Class"`` of a module that is there."""
        target = backend.spec.target
        assert isinstance(target, str), (
            f"target={target!r} of {backend}, handed over by {row.module}: the class itself, which had to be imported. "
            "Expected: 'package.module:Class'"
        )
        module = target.partition(":")[0]
        assert ask("core.testing.questions:found", module).value, (
            f"target={target!r} of {backend}: no module {module!r}"
        )


def _activated(backend: BackendUnderTest) -> Answer:
    """What a process sees that imports the backend's hook module and asks its hooks."""
    row = backend.row
    declared: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for other in backend.registry.rows():
        if (other.distribution, other.module, other.location) == (row.distribution, row.module, row.location):
            declared[other.kind].append(other.name)
    return _activated_module(row.module, tuple((kind, tuple(names)) for kind, names in declared.items()))


@cache
def _activated_module(module: str, declared: Any) -> Answer:
    return ask("core.testing.questions:activated", module, {kind: list(names) for kind, names in declared})
