"""A run killed in its third epoch and resumed ends bit for bit as the uninterrupted one; and on other numbers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

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


@pytest.mark.parametrize(("before", "after"), [("1", "2"), ("2", "1"), ("2", "3")])
def test_a_fit_goes_on_with_another_number_of_processes(before: str, after: str, tmp_path: Path) -> None:
    """It comes to what one process does that is not interrupted; a warning says that bits may differ, once."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    assert "not bit for bit" not in run_script(whole, "reshared.py", "1", "4").stderr
    run_script(broken, "reshared.py", before, "2")
    ended = run_script(broken, "reshared.py", after, "4")
    assert ended.stderr.count(f"written by {before} process(es), and this run has {after}") == 1
    expected, resumed = states(whole)[0], states(broken)
    for rank in range(int(after)):
        torch.testing.assert_close(resumed[rank], expected, rtol=1e-4, atol=1e-6)
    assert_same(resumed[0], resumed[int(after) - 1])
