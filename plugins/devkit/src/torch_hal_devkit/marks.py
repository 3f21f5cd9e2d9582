"""Marks of the tests of a suite: what each one needs, and why one is skipped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import attrs
import pytest
from _pytest.outcomes import Skipped  # pytest.skip.Exception, which type checkers do not see

from torch_hal.accelerators import CAPABILITIES
from torch_hal.errors import ConfigurationError, quoted
from torch_hal_devkit.report import TIERS

__all__ = [
    "UNSUPPORTED",
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

MARKER = "conformance"

UNSUPPORTED = pytest.StashKey[str]()
"""On a test of an unsupported feature that runs anyway: the declaration by which it is skipped if it fails."""


def facts(item: Any) -> dict[str, Any]:
    """What the report shows of a test besides its outcome; filled in while it runs."""
    for name, value in item.user_properties:
        if name == MARKER:
            found: dict[str, Any] = value
            return found
    made: dict[str, Any] = {}
    item.user_properties.append((MARKER, made))
    return made


def tier(name: str, *, needs: Iterable[str] = (), tried: bool = True) -> pytest.MarkDecorator:
    """Mark a test as part of a conformance suite. Not for classes: pytest adds up the marks of all bases.

    Args:
        name: One of :data:`TIERS`.
        needs: Names in :data:`core.accelerators.CAPABILITIES`. On an accelerator that does not support one of them, the
            test is skipped by declaration.
        tried: Whether it is safe to run the test there anyway: if it passes, the report says that a feature works that
            is declared unsupported.

    Raises:
        ConfigurationError: ``name`` or a capability in ``needs`` is unknown.
    """
    capabilities = (needs,) if isinstance(needs, str) else tuple(needs)
    if name not in TIERS:
        raise ConfigurationError(f"name={name!r}: unknown tier. Valid: {quoted(TIERS)}.")
    if unknown := sorted(set(capabilities) - CAPABILITIES):
        raise ConfigurationError(f"needs={quoted(unknown)}: unknown capability. Valid: {quoted(sorted(CAPABILITIES))}.")
    mark: pytest.MarkDecorator = getattr(pytest.mark, MARKER)(name, needs=capabilities, tried=tried)
    return mark


@attrs.frozen
class Needs:
    """The marks of one test, combined."""

    tier: str
    capabilities: tuple[str, ...]
    tried: bool

    @classmethod
    def of(cls, item: pytest.Item) -> Needs | None:
        """The combined marks of ``item``, with its parameters' first; ``None`` if it has none."""
        found = list(item.iter_markers(MARKER))
        if not found:
            return None
        needed: dict[str, Any] = dict.fromkeys(need for mark in found for need in mark.kwargs.get("needs", ()))
        return cls(found[0].args[0], tuple(needed), all(mark.kwargs.get("tried", True) for mark in found))


class SkippedByDeclaration(Skipped):
    """The backend declares that it does not support this."""


class NotRun(Skipped):
    """What the test needs is missing on this machine, such as a device; this says nothing about the backend."""


def skip_by_declaration(reason: str) -> NoReturn:
    """Skip a test because the backend declares that it does not support this; ``reason`` quotes the declaration."""
    raise SkippedByDeclaration(reason, _use_item_location=True)


def not_run(reason: str) -> NoReturn:
    """Skip a test because this machine lacks what it needs; the report lists it as not run."""
    raise NotRun(reason, _use_item_location=True)
