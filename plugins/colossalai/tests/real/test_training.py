"""Training on Colossal-AI itself, on one to three processes, against ddp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import python_processes
from torch_hal_devkit import check_backends

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=[2, *(pytest.param(count, marks=pytest.mark.exhaustive) for count in (1, 3))])
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script says on so many processes."""
    out = tmp_path_factory.mktemp(f"on-{request.param}")
    found = python_processes.run_script(HERE / "scripts" / "loops.py", out, request.param)
    return {**found, "processes": request.param}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_it_is_ddp(said: dict[str, Any], precision: str) -> None:
    """Losses and weights are those of ddp, with accumulation, clipping, dropout and batch norm: bit for bit up to two
    processes; on three, sums of gradients depend on how they are grouped."""
    ours, ddp = said[f"colossalai {precision}"], said[f"ddp {precision}"]
    if said["processes"] < 3:
        assert ours == ddp
    assert ours["losses"] == pytest.approx(ddp["losses"], abs=1e-5)
    assert ours["weights"] == pytest.approx(ddp["weights"], abs=1e-4)
    assert ddp["losses"][-1] < ddp["losses"][0]


def test_resumed_is_uninterrupted(said: dict[str, Any]) -> None:
    """A fit resumed in the middle ends as the uninterrupted one: bit for bit up to two processes."""
    if said["processes"] < 3:
        assert said["resumed"] == said["whole"]
    assert said["resumed"] == pytest.approx(said["whole"], abs=1e-4)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_it_passes_the_kit(tmp_path: Path) -> None:
    """The conformance kit passes; nothing is expected to fail."""
    check_backends("strategy:colossalai", folder=tmp_path, min_passed=100, seconds=880)
