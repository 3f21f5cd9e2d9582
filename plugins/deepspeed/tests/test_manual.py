"""Modules that call backward and step the engine's one optimizer themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import run, said

pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(600)]


@pytest.fixture(
    scope="module", params=[["3"], pytest.param(["0", "1", "2"], marks=pytest.mark.exhaustive)], ids="-".join
)
def stages(request: pytest.FixtureRequest) -> list[str]:
    """Those that run one after another in the same processes."""
    stages: list[str] = request.param
    return stages


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, stages: list[str]) -> Path:
    """Where ``manual.py`` has fitted under DDP and the stages, and again from within the second epoch."""
    out = tmp_path_factory.mktemp("manual")
    last = stages[-1]
    run(out, "manual.py", "whole", 2, "ddp", *stages, "ddp bf16-mixed", f"{last} bf16-mixed")
    run(out, "manual.py", "resumed", 2, *stages)
    return out


def found(out: Path, mode: str, name: str) -> dict[str, Any]:
    """What process 0 says."""
    fit: dict[str, Any] = said(out / f"{mode}-2-0.json")[name]
    return fit


def test_each_stage_trains_as_ddp(out: Path, stages: list[str]) -> None:
    """Four backward passes in a step, clipped, with a schedule and dropout: losses and validation are DDP's."""
    expected = found(out, "whole", "ddp")
    for stage in stages:
        fit = found(out, "whole", stage)
        assert fit["steps"] == expected["steps"] == 6
        for name in ("seen", "loss", "score"):
            assert fit[name] == pytest.approx(expected[name], rel=1e-5), stage


def test_bfloat16(out: Path, stages: list[str]) -> None:
    """In 16 bits training goes as under DDP, up to that precision's rounding."""
    fit, expected = found(out, "whole", f"{stages[-1]} bf16-mixed"), found(out, "whole", "ddp bf16-mixed")
    assert fit["seen"] == pytest.approx(expected["seen"], rel=5e-2, abs=5e-3)
    assert fit["seen"] != found(out, "whole", stages[-1])["seen"]


def test_resumed_within_an_epoch(out: Path, stages: list[str]) -> None:
    """From a checkpoint after a step in the second epoch, every loss is the same bit for bit."""
    for stage in stages:
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
