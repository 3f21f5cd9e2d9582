"""Evaluation where a forward pass needs all processes: those out of batches go along with the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import run_script


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes said."""
    out = tmp_path_factory.mktemp("together")
    run_script(out, "together.py")
    said: dict[str, Any] = json.loads((out / "said.json").read_text())
    return said


@pytest.mark.slow
@pytest.mark.parametrize("items", [10, 9, 2])
@pytest.mark.parametrize("strategy", ["DDPStrategy", "Together", "Shared"])
def test_each_item_counts_once(said: dict[str, Any], strategy: str, items: int) -> None:
    """Of five batches, or of one alone, two processes give each item once, whether they divide the data or share it."""
    metrics, predicted = said[f"{strategy} {items}"]
    numbers = [float(number) for number in range(1, items + 1)]
    assert predicted == numbers
    assert metrics == {"mean": sum(numbers) / items, "sum": sum(numbers)}
