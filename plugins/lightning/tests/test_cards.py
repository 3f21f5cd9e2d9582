"""Lightning's Trainer and Fabric on a device that neither they nor core name: simulated cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import run_script


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``two_cards.py`` says."""
    return run_script(tmp_path_factory.mktemp("two"), "two_cards.py")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``one_card.py`` says."""
    return run_script(tmp_path_factory.mktemp("one"), "one_card.py")


@pytest.mark.parametrize(("precision", "dtype"), [("32-true", "torch.float32"), ("bf16-mixed", "torch.bfloat16")])
def test_trainer_trains_as_the_cpu(two: dict[str, Any], precision: str, dtype: str) -> None:
    """On two cards, with the collectives and the autocast of the plugin, the weights are those of a loop by hand."""
    said = two[precision]
    assert said["distance"] < (1e-6 if precision == "32-true" else 5e-3)
    assert said["seen"] == {"device": "acme:0", "dtype": dtype}
    assert said["mean rank"] == 0.5
    assert said["backend"] == "acme:accl"
    assert said["tied"]
    assert said["same"]
    assert said["headline"] == f"ddp on acme:0-1, {precision}"


def test_fabric_trains_as_the_cpu(two: dict[str, Any]) -> None:
    """Gradients accumulated over two batches without communication in between; a checkpoint comes back."""
    assert two["fabric"]["distance"] < 1e-6
    assert two["fabric"]["reloaded"] == 0
    assert two["fabric"]["sum of integers"] == 3
    assert two["fabric"]["mean of integers"] == 0.5


def test_resuming_is_exact(one: dict[str, Any]) -> None:
    """A fit that was resumed has the weights of one that was not interrupted; shared weights stay shared."""
    assert one["resumed"] == {"distance": 0, "device": "acme:1", "tied": True, "same": True}


def test_fabric_trains_the_users_parameters(one: dict[str, Any]) -> None:
    """An optimizer made before ``setup`` trains the module on the card, and tied weights stay tied."""
    assert one["fabric"]["moved"] > 1e-3
    assert one["fabric"]["device"] == "acme:1"
    assert one["fabric"]["tied"]


def test_core_takes_lightnings_objects(one: dict[str, Any]) -> None:
    """core's Trainer calls a Lightning Callback, and logs to a Lightning Logger."""
    assert one["core"]["steps"] == list(range(1, 17))
    assert one["core"]["logged"].count("\n") == 17


@pytest.mark.parametrize("cards", [pytest.param(2, marks=pytest.mark.exhaustive), 3])
def test_data_that_does_not_divide(tmp_path: Path, cards: int) -> None:
    """Completed as Lightning does, shuffled under the Trainer; resumed between epochs; in 32 and 16 bits."""
    said = run_script(tmp_path, "uneven.py", cards, ACME_DEVICES=str(cards))
    for precision, close in (("32-true", 1e-6), ("bf16-mixed", 5e-3)):
        whole, resumed = said[f"{precision} whole"], said[f"{precision} resumed"]
        assert resumed == whole
        assert whole["device"] == "acme:0"
        assert whole["validation"] < close
        for found in (whole, said[f"{precision} fabric"]):
            assert found["world"] == cards
            assert found["distance"] < close


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("strategy", "formats"),
    [("ddp", "torch"), ("ddp", "safetensors"), ("fsdp", "sharded"), ("bagua_gradient_allreduce", "auto")],
)
def test_strategies_and_formats(tmp_path_factory: pytest.TempPathFactory, strategy: str, formats: str) -> None:
    """Each trains, resumes, predicts and reloads as a loop by hand does, in each checkpoint format."""
    said = run_script(tmp_path_factory.mktemp("strategy"), "strategies.py", strategy, formats)
    assert said["trainer"] < 1e-6
    assert said["predicted"] < 1e-5
    assert said["predicted by another"] < 1e-5
    assert said["fabric"] < 1e-6
    assert said["reloaded"] == 0
    assert said["not strict"] == 0
