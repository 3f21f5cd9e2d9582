"""DiLoCo: local steps, and seldom an outer one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_hal_parallel import DiLoCoStrategy

from torch_hal import Runtime
from torch_hal.errors import CoreError

from .conftest import run_script


def test_it_follows_the_paper(tmp_path: Path) -> None:
    """Three processes have the weights of its formulas, and resume bit for bit between two outer steps."""
    said = run_script(tmp_path, "local.py")
    assert said["error"] < 1e-5
    assert said["apart"] > 1e-3  # two local steps after the last outer one
    assert said["resumed"]


@pytest.mark.parametrize(
    ("processes", "precisions"),
    [
        pytest.param(2, ["32-true", "bf16-mixed"], marks=pytest.mark.slow),
        pytest.param(1, ["32-true", "bf16-mixed"], marks=pytest.mark.exhaustive),
        pytest.param(3, ["32-true", "bf16-mixed", "64-true"], marks=pytest.mark.exhaustive),
        pytest.param(2, ["16-mixed"], marks=pytest.mark.exhaustive),
    ],
)
def test_trainer(processes: int, precisions: list[str], tmp_path: Path) -> None:
    """Each process trains and validates with its own weights between outer steps, and resumes there bit for bit.

    With its own loss scale too; a step that one of them skips counts in the schedule of its learning rate.
    """
    for precision, said in run_script(tmp_path, "local_trainer.py", processes, *precisions).items():
        # With 16 bits, a last bit of the means can change a bit.
        error = 2e-4 if precision in ("bf16-mixed", "16-mixed") else 1e-5
        assert said["error"] < error, precision
        assert (said["apart"] > 1e-3) == (processes > 1)
        assert said["validated"] == pytest.approx(said["expected"], abs=10 * error)
        assert said["resumed"]
        assert said["validated again"] == said["validated"][1:]
        assert said["steps"] == 10


@pytest.mark.parametrize(
    "options",
    [{"sync_every": 0}, {"outer_lr": 0}, {"outer_lr": "0.7"}, {"outer_momentum": 1}, {"outer_momentum": -0.1}],
)
def test_arguments(options: dict[str, Any]) -> None:
    """The error names the argument."""
    with pytest.raises(CoreError, match=next(iter(options))):
        DiLoCoStrategy(**options)


def test_its_name() -> None:
    """It has the paper's settings."""
    strategy = Runtime(accelerator="cpu", devices=2, strategy="diloco").strategy
    assert isinstance(strategy, DiLoCoStrategy)
    assert (strategy.sync_every, strategy.outer_lr, strategy.outer_momentum) == (500, 0.7, 0.9)
