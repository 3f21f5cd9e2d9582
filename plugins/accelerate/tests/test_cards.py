"""Accelerate on a device that neither it nor core names: simulated cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import run_script


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``cards.py`` says on two cards whose order is not that of the ranks."""
    return run_script(tmp_path_factory.mktemp("two"), "cards.py", "1,0", "no", "bf16", "fp16")


@pytest.mark.parametrize(("precision", "tolerance"), [("no", 1e-6), ("bf16", 5e-3), ("fp16", 1e-2)])
def test_it_trains_as_the_cpu(two: dict[str, Any], precision: str, tolerance: float) -> None:
    """Weights are those of a loop by hand; the optimizer, made before ``prepare``, trains the module on the card."""
    said = two[precision]
    assert said["distance"] < tolerance
    assert said["device"] == said["parameters"] == "acme:1"
    assert said["backend"] == "acme:accl"
    assert said["gathered"] == [0, 1]
    assert (said["scale"] is not None) == (precision == "fp16")


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_a_state_comes_back(two: dict[str, Any], precision: str) -> None:
    """With the weights, and with the random number generator of the card."""
    assert two[precision]["reloaded"] == 0
    assert two[precision]["draws the same"]


@pytest.mark.parametrize("cards", [pytest.param(2, marks=pytest.mark.exhaustive), 3])
def test_data_that_does_not_divide(tmp_path: Path, cards: int) -> None:
    """Completed as Accelerate does; ``gather_for_metrics`` gives each sample once, in order.

    In 32 and 16 bits, and with ``split_batches``.
    """
    said = run_script(tmp_path, "uneven.py", cards, ACME_DEVICES=str(cards))
    assert said.keys() == {f"{kind} {items}" for kind in ("no", "bf16", "no split") for items in (62, 67)}
    for name, found in said.items():
        assert found["distance"] < (1e-6 if name.startswith("no") else 1e-2), name
        assert (found["device"], found["world"], found["numbers"]) == ("acme:0", cards, True), name


@pytest.mark.exhaustive
def test_one_card(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without a process group."""
    said = run_script(tmp_path_factory.mktemp("one"), "cards.py", "1", "no", "fp16")
    assert said["no"]["distance"] < 1e-6
    assert said["no"]["backend"] is None
    assert said["fp16"]["distance"] < 1e-2  # the reference computes in bfloat16
    assert said["no"]["draws the same"]
    assert said["fp16"]["draws the same"]


@pytest.mark.exhaustive
def test_fsdp(tmp_path: Path) -> None:
    """Accelerate's own: version 2 trains as the CPU and resumes; version 1 is refused, since it cannot move modules."""
    said = run_script(tmp_path, "sharded.py")
    assert said["distance"] < 1e-6
    assert said["resumed"]
    assert said["device"] == "acme:0"
    assert "fsdp_version=1: " in said["refused"]
    assert "Use fsdp_version=2" in said["refused"]
