"""T0 of every kind: a plugin's metadata and hooks, without torch or hardware."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from torch_hal.discovery.metadata import unmet
from torch_hal.discovery.scan import CORE, Row
from torch_hal.kinds import KINDS
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.fresh import Answer, ask
from torch_hal_devkit.marks import not_run, tier

__all__ = ["ACTIVATION_LIMIT", "DETECTION_LIMIT", "MetadataTests"]

ACTIVATION_LIMIT = 2.0
"""The time limit of a hook module in seconds: it runs in every program that uses one of its names."""
DETECTION_LIMIT = 5.0
"""The time limit of ``detect`` in seconds: core waits no longer for it."""

_LONGEST = 100


class MetadataTests:
    """Tests of tier T0."""

    @pytest.fixture
    def row(self, backend: BackendUnderTest) -> Row:
        """The backend's metadata."""
        if backend.is_registered_in_code:
            not_run(f"{backend} was registered in code and has no metadata")
        return backend.row

    @tier("T0")
    def test_it_is_usable(self, row: Row) -> None:
        """The installed backend can be used by its name."""
        assert row.state == "installed", (
            f"{row.kind} {row.name!r} of {row.origin} is {row.state}: {row.reason}. Expected: installed"
        )

    @tier("T0")
    def test_it_requires_torch_hal(self, row: Row) -> None:
        """The distribution declares the torch-hal versions that it works with, and this one is among them."""
        if row.is_core:
            not_run(f"it is {CORE}'s own")
        assert row.requires, (
            f"{row.origin} does not declare which {CORE} it works with. Expected in its pyproject.toml: "
            f'dependencies = ["{CORE}>=0.1,<1"]'
        )
        own = next(r.version for r in BackendUnderTest.find("accelerator", "cpu", {}).registry.rows() if r.is_core)
        for requirement in row.requires:
            assert not unmet(requirement, own), f"{row.origin} {unmet(requirement, own)}; this is {CORE} {own}"

    @tier("T0")
    def test_listing_imports_nothing(self, row: Row) -> None:
        """``python -m core.list`` shows the backend without importing its package or torch."""
        package = row.module if row.is_core else row.module.partition(".")[0]
        answer = ask("torch_hal_devkit.probes:listed", [package, "torch"])
        assert row.name in answer.output, f"python -m core.list does not show {row.name!r}:\n{answer.output}"
        assert answer.value == [], f"python -m core.list imports {answer.value}. Expected: neither {package} nor torch"

    @tier("T0")
    def test_names_in_metadata_are_those_of_the_hooks(self, backend: BackendUnderTest, row: Row) -> None:
        """The hooks of the plugin's module return exactly the backends that its metadata declares."""
        failures = _activated(backend).value["failures"]
        assert not failures, f"{row.module} and the entry points of {row.origin} do not agree: " + "; ".join(
            f"{which}: {reason}" for which, reason in failures.items()
        )

    @tier("T0")
    def test_the_hook_module_imports_no_torch(self, backend: BackendUnderTest, row: Row) -> None:
        """Looking up a name does not import torch."""
        assert not _activated(backend).value["torch"], (
            f"importing {row.module} and calling its hooks imports torch. Expected: only the target imports torch"
        )

    @tier("T0")
    def test_the_hook_module_prints_nothing(self, backend: BackendUnderTest, row: Row) -> None:
        """Activating the plugin prints nothing, from Python or from a library."""
        answer = _activated(backend)
        printed = (answer.value["output"] or answer.output).strip()
        assert not printed, f"importing {row.module} and calling its hooks prints {printed[:500]!r}. Expected: nothing"

    @tier("T0")
    def test_the_hook_module_is_quick(self, backend: BackendUnderTest, row: Row) -> None:
        """Activating the plugin takes bounded time."""
        seconds = _activated(backend).value["seconds"]
        assert seconds <= ACTIVATION_LIMIT, (
            f"importing {row.module} and calling its hooks takes {seconds:.1f} s. Expected: {ACTIVATION_LIMIT:g} s"
        )

    @tier("T0")
    def test_the_description(self, backend: BackendUnderTest) -> None:
        """The spec describes the backend in one line, for listings."""
        text = backend.spec.description
        one_line = text == text.strip() and text.isprintable() and 0 < len(text) <= _LONGEST
        assert one_line, f"description={text!r} of {backend}. Expected: one line of 1 to {_LONGEST} characters"

    @tier("T0")
    def test_the_aliases(self, backend: BackendUnderTest) -> None:
        """The spec's aliases are distinct, and its own name is not among them."""
        spec = backend.spec
        assert spec.name not in spec.aliases, f"aliases={spec.aliases} of {backend}: its own name is not an alias"
        assert len(set(spec.aliases)) == len(spec.aliases), f"aliases={spec.aliases} of {backend}: duplicate alias"

    @tier("T0")
    def test_the_target_can_be_named(self, backend: BackendUnderTest, row: Row) -> None:
        """The spec names its class as ``"module:Class"`` of a module that exists."""
        target = backend.spec.target
        assert isinstance(target, str), (
            f"target={target!r} of {backend} in {row.module} is the class itself, which had to be imported. "
            "Expected: 'package.module:Class'"
        )
        module = target.partition(":")[0]
        assert _exists(module), f"target={target!r} of {backend}: no module {module!r}"


def _exists(module: str) -> bool:
    """Whether there is such a module; neither it nor the packages that it is in are imported."""
    names = module.split(".")
    path: Sequence[str] | None = None
    for depth in range(1, len(names) + 1):
        name = ".".join(names[:depth])
        spec = next(filter(None, (finder.find_spec(name, path) for finder in sys.meta_path)), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations or []
    return True


def _activated(backend: BackendUnderTest) -> Answer:
    """What a process observes that imports the backend's hook module and calls its hooks."""
    row = backend.row
    declared: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for other in backend.registry.rows():
        if (other.distribution, other.module, other.location) == (row.distribution, row.module, row.location):
            declared[other.kind].append(other.name)
    return _activated_module(row.module, tuple((kind, tuple(names)) for kind, names in declared.items()))


@cache
def _activated_module(module: str, declared: Any) -> Answer:
    return ask("torch_hal_devkit.probes:activated", module, {kind: list(names) for kind, names in declared})
