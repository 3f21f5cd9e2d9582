"""What Trainer and Runtime do on two processes, besides training."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from .conftest import run_script


def test_collectives(tmp_path: Path) -> None:
    """Every collective gives what its formula says, refuses what it cannot do, and ``print`` prints once."""
    result = run_script(tmp_path, "collectives.py")
    assert result.stdout.count("printed once") == 1


@pytest.mark.slow
def test_communication_hooks_and_sharded_state(tmp_path: Path) -> None:
    """Each hook averages as its formula says, options are checked, and an optimizer's state is shared out and saved."""
    result = run_script(tmp_path, "communication.py")
    assert "process 0 is through" in result.stdout
    assert "process 1 is through" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_evaluation_on_two_equals_evaluation_on_one(strategy: str, tmp_path: Path) -> None:
    """Every item counts once and predictions keep the order, though batches do not divide; one process stops all.

    A copy of the Trainer, after its fit, is one like it.
    """
    run_script(tmp_path, "stages.py", strategy, "2")
    values = [(12 * item) / 1000 for item in range(53)]
    ranks = (0, 1) if strategy == "ddp" else (0,)
    for rank in ranks:
        results = json.loads((tmp_path / f"results{rank}.json").read_text())
        assert results["fit"] == ["first", "largest", "loss"]
        assert results["epochs"] == 1
        for stage in ("validate", "test", "second", "copied"):
            assert math.isclose(results[stage]["first"], sum(values) / 53, rel_tol=1e-5), stage
            assert math.isclose(results[stage]["largest"], (12 * 15 + 11) / 1000, rel_tol=1e-5), stage
        assert results["predict"] == pytest.approx(values)
        assert len(results["drawn"]) == 4
        assert len(set(results["drawn"])) > 1, "each validation of an epoch shuffles"
