"""A run killed in its third epoch and resumed ends bit for bit as the uninterrupted one; and on other numbers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from .conftest import assert_same, run_script, states


@pytest.mark.parametrize(
    ("devices", "precision", "strategy", "die", "accumulate"),
    [
        ("1", "16-mixed", "auto", "die", "1"),
        ("2", "32-true", "auto", "die-within", "2"),
        pytest.param("1", "32-true", "auto", "die", "1", marks=pytest.mark.slow),
        pytest.param("2", "32-true", "auto", "die", "1", marks=pytest.mark.slow),
        pytest.param("2", "32-true", "ddp_sharded", "die", "1", marks=pytest.mark.slow),
        pytest.param("2", "32-true", "ddp_sharded", "die-within", "2", marks=pytest.mark.slow),
        pytest.param("3", "32-true", "ddp_find_unused_parameters_true", "die-within", "1", marks=pytest.mark.slow),
    ],
)
def test_resumed_run_equals_uninterrupted(
    devices: str, precision: str, strategy: str, die: str, accumulate: str, tmp_path: Path
) -> None:
    """SIGKILL in epoch 3 of 4, then a new process with another seed and ``ckpt_path="last"``: the same parameters."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    run_script(whole, "resumable.py", "go", devices, precision, strategy, accumulate)
    run_script(broken, "resumable.py", die, devices, precision, strategy, accumulate, expect=-signal.SIGKILL)
    assert not states(broken)
    assert len(list((broken / "checkpoints").iterdir())) == (3 if die == "die-within" else 2)
    run_script(broken, "resumable.py", "resume", devices, precision, strategy, accumulate)
    expected, resumed = states(whole), states(broken)
    assert sorted(expected) == sorted(resumed) == list(range(int(devices)))
    for rank, state in expected.items():
        assert_same(resumed[rank], state)


def test_an_error_of_one_process_alone_is_the_cause_and_process_0_saves(tmp_path: Path) -> None:
    """``save_on_exception`` waits for no process that computes; the run goes on from what process 0 has written."""
    said = run_script(tmp_path, "resumable.py", "fail", "2", "32-true", "auto", "1", expect=1).stderr
    assert "\nrank 1 of 2 failed: ValueError: planted\n  at " in said.partition("rank 0 of 2 ends because")[2]
    epochs = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert len(epochs) == 3
    within = torch.load(tmp_path / "checkpoints" / epochs[-1])
    assert (within["epoch"], within["progress"]["batch"]) == (2, 3)
    run_script(tmp_path, "resumable.py", "resume", "2", "32-true", "auto", "1")
    first, second = states(tmp_path).values()
    for name in first.keys() - {"total"}:  # what the failed process had summed up is lost
        assert torch.equal(first[name], second[name])


@pytest.mark.slow
def test_a_fit_goes_on_with_other_numbers_of_processes(tmp_path: Path) -> None:
    """From one to two to three to one it gives what an uninterrupted run does; warnings say that bits may differ."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    assert "not bit for bit" not in run_script(whole, "reshared.py", "1", "6").stderr
    run_script(broken, "reshared.py", "1", "2")
    for before, after, epochs in (("1", "2", "3"), ("2", "3", "4"), ("3", "1", "6")):
        ended = run_script(broken, "reshared.py", after, epochs)
        assert ended.stderr.count(f"written by {before} process(es), but this run has {after}") == 1
        resumed = states(broken)
        assert_same(resumed[0], resumed[int(after) - 1])
    torch.testing.assert_close(states(broken)[0], states(whole)[0], rtol=1e-4, atol=1e-6)


def test_the_last_checkpoint_is_the_one_that_process_0_finds(tmp_path: Path) -> None:
    """Whatever lies on the other processes' machines; if there is none, all of them raise, and can go on without it."""
    said = run_script(tmp_path, "last.py").stdout.splitlines()
    assert sorted(said) == [
        "0: no committed checkpoint",
        "0: resumed at 2",
        "1: no committed checkpoint",
        "1: resumed at 2",
    ]
