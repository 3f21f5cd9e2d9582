"""Marking the tests of a suite: what each one needs, and why one is not run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import attrs
import pytest
from _pytest.outcomes import Skipped  # pytest.skip.Exception, which type checkers do not see

from core.accelerators import CAPABILITIES
from core.errors import ConfigurationError, quoted

__all__ = [
    "LACKED",
    "MARKER",
    "TIERS",
    "Needs",
    "NotRun",
    "SkippedByDeclaration",
    "facts",
    "not_run",
    "skip_by_declaration",
    "tier",
]

TIERS = {
    "T0": "metadata: no torch, no hardware",
    "T1": "import: no device",
    "T2": "one device",
    "T3": "two devices or more",
}
"""The tiers, and what is there when one is run."""

MARKER = "conformance"

LACKED = pytest.StashKey[str]()
"""On a test that is tried all the same: the declaration by which it counts as skipped if it fails."""


def facts(item: Any) -> dict[str, Any]:
    """What the report will say of a test beside how it ended; filled in while it runs."""
    for name, value in item.user_properties:
        if name == MARKER:
            found: dict[str, Any] = value
            return found
    made: dict[str, Any] = {}
    item.user_properties.append((MARKER, made))
    return made


def tier(name: str, *, needs: Iterable[str] = (), tried: bool = True) -> pytest.MarkDecorator:
    """Mark a test as one of a conformance suite. Not for a class: pytest adds up the marks of all its bases.

    Args:
        name: One of :data:`TIERS`.
        needs: Words of :data:`core.accelerators.CAPABILITIES`. On an accelerator that lacks one of them the test is
            skipped by declaration.
        tried: Whether it is harmless to run it there all the same: if it passes, the report says that something works
            that is declared as lacking.

    Raises:
        ConfigurationError: A word is unknown.
    """
    words = (needs,) if isinstance(needs, str) else tuple(needs)
    if name not in TIERS:
        raise ConfigurationError(f"name={name!r}: no tier. Valid: {quoted(TIERS)}.")
    if unknown := sorted(set(words) - CAPABILITIES):
        raise ConfigurationError(f"needs={quoted(unknown)}: unknown. Valid: {quoted(sorted(CAPABILITIES))}.")
    mark: pytest.MarkDecorator = getattr(pytest.mark, MARKER)(name, needs=words, tried=tried)
    return mark


@attrs.frozen
class Needs:
    """What the marks of one test say."""

    tier: str
    capabilities: tuple[str, ...]
    tried: bool

    @classmethod
    def of(cls, item: pytest.Item) -> Needs | None:
        """What the marks of ``item``, its parameters' first, say together; ``None`` where there is none."""
        found = list(item.iter_markers(MARKER))
        if not found:
            return None
        needed: dict[str, Any] = dict.fromkeys(word for mark in found for word in mark.kwargs.get("needs", ()))
        return cls(found[0].args[0], tuple(needed), all(mark.kwargs.get("tried", True) for mark in found))


class SkippedByDeclaration(Skipped):
    """The backend itself says that it does not do this."""


class NotRun(Skipped):
    """Nothing is said of the backend: what the test needs is not here, such as a device."""


def skip_by_declaration(reason: str) -> NoReturn:
    """Leave a test because the backend declares that it does not do this; ``reason`` quotes the declaration."""
    raise SkippedByDeclaration(reason, _use_item_location=True)


def not_run(reason: str) -> NoReturn:
    """Leave a test because something that it needs is not here; the report lists it as not run."""
    raise NotRun(reason, _use_item_location=True)
