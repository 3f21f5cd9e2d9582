"""DDP over two processes is bit for bit what one writes by hand, whichever way the processes are started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import State, assert_same, run_script, states


def _slow(*strategies: str) -> list[Any]:
    """Other ways of starting the processes."""
    return [pytest.param(strategy, marks=pytest.mark.slow) for strategy in strategies]


@pytest.mark.parametrize("strategy", ["ddp", *_slow("ddp_spawn", "ddp_sharded", "ddp_fork", "ddp_notebook")])
def test_trainer_equals_hand_written_ddp(strategy: str, hand_written: State, tmp_path: Path) -> None:
    """The Trainer's parameters after 50 steps are the hand-written script's, on both ranks and where it was asked."""
    run_script(tmp_path, "with_trainer.py", strategy)
    left = states(tmp_path)
    assert sorted(left) == ([0, 1, 100, 101] if strategy in ("ddp", "ddp_sharded") else [0, 1, 100])
    for state in left.values():
        assert_same(state, hand_written)


@pytest.mark.parametrize("strategy", ["ddp_fork", *_slow("ddp", "ddp_spawn", "ddp_sharded")])
def test_runtime_equals_hand_written_ddp(strategy: str, hand_written: State, tmp_path: Path) -> None:
    """An own loop on the Runtime ends with the hand-written script's parameters, on both ranks."""
    run_script(tmp_path, "with_runtime.py", strategy)
    left = states(tmp_path)
    assert sorted(left) == [0, 1]
    for state in left.values():
        assert_same(state, hand_written)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["with_trainer.py", "with_runtime.py"])
def test_torchrun_gives_the_same_bits(script: str, hand_written: State, tmp_path: Path) -> None:
    """Under torchrun the same script, unchanged, gives the same parameters."""
    run_script(tmp_path, script, "ddp", torchrun=2)
    left = states(tmp_path)
    assert {0, 1} <= set(left)
    for state in left.values():
        assert_same(state, hand_written)
