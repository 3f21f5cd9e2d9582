"""Callbacks of several processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from .conftest import assert_same, run_script


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("ddp_spawn", marks=pytest.mark.exhaustive)])
def test_three_processes_decide_alike(strategy: str, tmp_path: Path) -> None:
    """By process 0's metrics and clock: same state, files that exist, and a checkpoint after the end that resumes.

    All end with the same average, buffers included, and so does a resumed run.
    """
    run_script(tmp_path, "callbacks.py", strategy)
    states = [torch.load(path, weights_only=True) for path in sorted(tmp_path.glob("state-*.pt"))]
    assert len(states) == (3 if strategy == "ddp" else 1)
    for state in states[1:]:
        assert str(state) == str(states[0])
    best, timed, default, _, steps = states[0]
    # process 0 logs 0, 1, 2, 0, …, and a checkpoint is written after every second step
    assert sorted(float(score) for score in best["best_k_models"].values()) == [2.0, 2.0]
    assert sorted(os.listdir(tmp_path / "best")) == sorted(
        [*(os.path.basename(path) for path in best["best_k_models"]), "last.ckpt"]
    )
    assert 1 <= len(os.listdir(tmp_path / "timed")) <= steps
    assert timed["best_model_path"]
    assert default["best_model_path"].startswith(str(tmp_path / "checkpoints" / "version_0"))
    average, *others = [torch.load(path) for name in ("whole", "resumed") for path in tmp_path.glob(f"{name}-*.pt")]
    assert len(others) == (5 if strategy == "ddp" else 1)
    for other in others:
        assert_same(average, other)
