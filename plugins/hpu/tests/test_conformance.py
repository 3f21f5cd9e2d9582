"""The conformance kit of core on simulated cards."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_hal_devkit import check_backends

from .conftest import needs_backward, needs_simulation

pytest.importorskip("stand_ins", reason="needs the stand-ins for Intel's library")


@needs_backward
@needs_simulation
@pytest.mark.timeout(600)
@pytest.mark.parametrize("modules", ["0", pytest.param("0,1", marks=pytest.mark.slow)], ids=["one card", "two cards"])
def test_it_passes_the_kit(cards: Path, tmp_path: Path, modules: str) -> None:
    """The kit passes for every backend: skips are declared, and what Gaudi is otherwise in fails as expected."""
    number = len(modules.split(","))
    known = Path(__file__).with_name("expected-failures.toml")
    check_backends(
        "accelerator:hpu",
        "strategy:hpu_single",
        "strategy:hpu_parallel",
        folder=tmp_path,
        options=[
            f"--backend-devices={number}",
            "--hide-devices=HABANA_VISIBLE_MODULES=7",
            f"--expected-failures={known}",
        ],
        # The library loads itself, as it does in eager mode: the kit computes on the host before it asks for a card.
        environ={"HABANA_VISIBLE_MODULES": modules, "HPU_DEVICES": str(number), "PT_HPU_AUTOLOAD": "1"},
    )
