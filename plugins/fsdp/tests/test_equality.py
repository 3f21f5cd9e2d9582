"""Every form of FSDP trains as DDP does."""

from __future__ import annotations

from typing import Any

import pytest

EXACT = 3e-5
"""How far losses in float32 may be apart after six steps: sums in another order, which some CPUs round to 1.02e-5."""
ON_TWO = {
    "fsdp": ["mlp", "transformer", "tied"],
    "offload": ["mlp", "transformer"],
    "hybrid": ["transformer"],
    "classes": ["transformer"],
    "model": ["transformer"],
    "size": ["mlp", "transformer", "tied"],
    "function": ["transformer"],
    "tensor": ["transformer", "tied"],
}
ON_FOUR = {
    "fsdp": ["mlp", "transformer"],
    "hybrid": ["mlp", "transformer"],
    "tensor": ["transformer"],
    "smaller": ["transformer"],
}


def assert_alike(one: dict[str, Any], other: dict[str, Any], tolerance: float = EXACT) -> None:
    assert len(one["losses"]) == 6
    assert one["losses"][-1] != one["losses"][0]
    for kind in ("losses", "norms"):
        assert one[kind] == pytest.approx(other[kind], rel=tolerance, abs=tolerance)
    for kind in ("evaluated", "afterwards"):
        assert one[kind] == pytest.approx(other[kind], rel=tolerance)


@pytest.mark.parametrize(("form", "model"), [(form, model) for form, models in ON_TWO.items() for model in models])
def test_on_two_processes_it_trains_as_ddp(on_two: dict[str, Any], form: str, model: str) -> None:
    """Losses step by step, and on new data afterwards, are DDP's."""
    assert_alike(on_two[f"{form} {model} plain"], on_two[f"ddp {model} plain"])


@pytest.mark.parametrize(("form", "model"), [(form, model) for form, models in ON_FOUR.items() for model in models])
def test_on_four_processes_it_trains_as_ddp(on_four: dict[str, Any], form: str, model: str) -> None:
    """Losses step by step, and on new data afterwards, are DDP's."""
    assert_alike(on_four[f"{form} {model} plain"], on_four[f"ddp {model} plain"])


@pytest.mark.parametrize("work", ["norm", "value", "accumulated"])
@pytest.mark.parametrize(
    "form",
    [
        *("two fsdp mlp", "two fsdp transformer", "two fsdp tied", "two tensor transformer", "two tensor tied"),
        *("four fsdp transformer", "four hybrid mlp", "four hybrid transformer", "four tensor transformer"),
    ],
)
def test_clipping_and_accumulation_are_those_of_ddp(
    on_two: dict[str, Any], on_four: dict[str, Any], form: str, work: str
) -> None:
    """The norm is that of the whole gradient; clipped by norm or value, or accumulated, training goes as under DDP."""
    processes, name, model = form.split()
    said = on_two if processes == "two" else on_four
    found, expected = said[f"{name} {model} {work}"], said[f"ddp {model} {work}"]
    assert_alike(found, expected)
    assert bool(found["norms"]) == (work != "value")
    assert found["losses"] != said[f"{name} {model} plain"]["losses"]


@pytest.mark.parametrize("form", ["offload mlp", "offload transformer", "model transformer", "each transformer"])
def test_accumulation_of_other_forms(on_two: dict[str, Any], form: str) -> None:
    """Offloaded, recomputed, or with gradients reduced each batch, accumulation gives the same."""
    assert_alike(on_two[f"{form} accumulated"], on_two[f"ddp {form.split()[1]} accumulated"])


@pytest.mark.parametrize(
    ("form", "precision", "tolerance"),
    [
        ("fsdp", "64-true", 1e-5),
        ("fsdp", "bf16-mixed", 5e-3),
        ("fsdp", "16-mixed", 1e-3),
        ("fsdp", "bf16-true", 5e-3),
        ("tensor", "64-true", 1e-5),
        ("tensor", "bf16-mixed", 5e-3),
        ("tensor", "bf16-true", 5e-3),
    ],
)
def test_precisions(on_two: dict[str, Any], form: str, precision: str, tolerance: float) -> None:
    """In every precision training goes as under DDP, up to that precision's rounding."""
    found = on_two[f"{form} {precision} transformer norm"]
    expected = on_two[f"ddp {precision} transformer norm"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=tolerance)
    assert found["norms"] == pytest.approx(expected["norms"], rel=10 * tolerance)


@pytest.mark.parametrize("form", ["two fsdp mlp", "two fsdp transformer", "four fsdp mlp", "four fsdp transformer"])
def test_memory_is_a_process_share(on_two: dict[str, Any], on_four: dict[str, Any], form: str) -> None:
    """Parameters, gradients and optimizer state of a process are at most its share of DDP's, and 5 % of the whole."""
    processes, name, model = form.split()
    said, count = (on_two, 2) if processes == "two" else (on_four, 4)
    whole = max(said[f"ddp {model} plain"]["bytes"])
    assert max(said[f"{name} {model} plain"]["bytes"]) <= (1 / count + 0.05) * whole


def test_names_in_the_state_are_the_users(on_two: dict[str, Any]) -> None:
    """Parameters keep the names they have in the user's own model."""
    for form in ("fsdp", "model", "tensor"):
        assert on_two[f"{form} transformer plain"]["shape"] == on_two["ddp transformer plain"]["shape"]
