"""DiLoCo: local steps, and seldom an outer one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_hal_parallel import DiLoCoStrategy

from core import Runtime
from core.errors import CoreError

from .conftest import run_script


def test_it_follows_the_paper(tmp_path: Path) -> None:
    """Three processes have the weights of its formulas, and resume bit for bit between two outer steps."""
    said = run_script(tmp_path, "local.py")
    assert said["error"] < 1e-5
    assert said["apart"] > 1e-3  # two local steps after the last outer one
    assert said["resumed"]


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
