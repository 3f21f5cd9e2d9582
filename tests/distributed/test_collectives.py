"""Collectives and process control on three processes, with data that does not divide."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import run_script


def test_collectives_of_three(tmp_path: Path) -> None:
    """Each gives what its formula says; what differs between processes is refused in all of them."""
    result = run_script(tmp_path, "collectives_of_three.py")
    assert result.stdout.splitlines() == ["through"]


@pytest.mark.parametrize(
    ("processes", "cases"),
    [("3", "40"), pytest.param("3", "400", marks=pytest.mark.slow), pytest.param("2", "400", marks=pytest.mark.slow)],
)
def test_gather_for_metrics_of_random_loaders(processes: str, cases: str, tmp_path: Path) -> None:
    """Every item once, in order: uneven data, streams, batch samplers, loops that are left, and nested ones."""
    result = run_script(tmp_path, "gather_for_metrics.py", processes, cases)
    assert result.stdout.splitlines() == [f"all {cases} cases"]
