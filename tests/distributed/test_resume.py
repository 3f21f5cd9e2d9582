"""A run killed in its third epoch and resumed ends bit for bit as the uninterrupted one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .conftest import assert_same, run_script, states


@pytest.mark.parametrize(
    ("devices", "precision", "strategy"),
    [
        ("1", "32-true", "auto"),
        ("2", "32-true", "auto"),
        ("1", "16-mixed", "auto"),
        ("2", "32-true", "ddp_sharded"),
    ],
)
def test_resumed_run_equals_uninterrupted(devices: str, precision: str, strategy: str, tmp_path: Path) -> None:
    """SIGKILL in epoch 3 of 4, then a new process with another seed and ``ckpt_path="last"``: the same parameters."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    run_script(whole, "resumable.py", "go", devices, precision, strategy)
    run_script(broken, "resumable.py", "die", devices, precision, strategy, expect=-signal.SIGKILL)
    assert not states(broken)
    assert len(list((broken / "checkpoints").iterdir())) == 2
    run_script(broken, "resumable.py", "resume", devices, precision, strategy)
    expected, resumed = states(whole), states(broken)
    assert sorted(expected) == sorted(resumed) == list(range(int(devices)))
    for rank, state in expected.items():
        assert_same(resumed[rank], state)
