"""Modules that call backward and step the engine's one optimizer themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import STAGES, run, said

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``manual.py`` has fitted under DDP and each stage, and again from within the second epoch."""
    out = tmp_path_factory.mktemp("manual")
    run(out, "manual.py", "whole", 2, "ddp", *STAGES, "ddp bf16-mixed", "2 bf16-mixed")
    run(out, "manual.py", "resumed", 2, *STAGES)
    return out


def found(out: Path, mode: str, name: str) -> dict[str, Any]:
    """What process 0 says."""
    fit: dict[str, Any] = said(out / f"{mode}-2-0.json")[name]
    return fit


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_trains_as_ddp(out: Path, stage: str) -> None:
    """Four backward passes in a step, clipped, with a schedule and dropout: losses and validation are DDP's."""
    fit, expected = found(out, "whole", stage), found(out, "whole", "ddp")
    assert fit["steps"] == expected["steps"] == 6
    for name in ("seen", "loss", "score"):
        assert fit[name] == pytest.approx(expected[name], rel=1e-5)


def test_bfloat16(out: Path) -> None:
    """In 16 bits training goes as under DDP, up to that precision's rounding."""
    fit, expected = found(out, "whole", "2 bf16-mixed"), found(out, "whole", "ddp bf16-mixed")
    assert fit["seen"] == pytest.approx(expected["seen"], rel=5e-2, abs=5e-3)
    assert fit["seen"] != found(out, "whole", "2")["seen"]


@pytest.mark.parametrize("stage", STAGES)
def test_resumed_within_an_epoch(out: Path, stage: str) -> None:
    """From a checkpoint after a step in the second epoch, every loss is the same bit for bit."""
    whole, resumed = found(out, "whole", stage), found(out, "resumed", stage)
    assert resumed["seen"] == whole["seen"][-len(resumed["seen"]) :]
    assert 0 < len(resumed["seen"]) < len(whole["seen"]) / 2
    assert (resumed["loss"], resumed["score"]) == (whole["loss"], whole["score"])


def test_what_the_engine_cannot_do_is_refused(tmp_path: Path) -> None:
    """A second optimizer, and a checkpoint between a backward pass and its step."""
    run(tmp_path, "manual.py", "refused", 1, "2")
    refused = said(tmp_path / "refused-1-0.json")
    assert "DeepSpeed's engine supports one. Pass one optimizer with several parameter groups" in refused["two"]
    assert "Save after an optimizer step" in refused["halfway"]
