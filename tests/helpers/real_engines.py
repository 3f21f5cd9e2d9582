"""Tests of a plugin that need its engine: marked, and skipped with the reason where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["mark_real"]


def mark_real(items: list[pytest.Item], folder: Path, engine: str, title: str | None = None) -> None:
    """Give tests in ``folder`` the marker ``<engine>_real``, and skip them if the module ``engine`` is missing."""
    marks = [getattr(pytest.mark, f"{engine}_real")]
    if find_spec(engine) is None:
        marks.append(pytest.mark.skip(reason=f"{title or engine} is not installed; run nox -s {engine}"))
    for item in items:
        if folder in item.path.parents:
            for mark in marks:
                item.add_marker(mark)
