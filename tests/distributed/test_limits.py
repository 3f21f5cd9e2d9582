"""Training and validation where processes have different numbers of batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .conftest import assert_same, run_script


@pytest.mark.slow
def test_validation_within_epochs_of_different_lengths(tmp_path: Path) -> None:
    """Three processes with 7, 9 and 8 batches validate after the same steps, stop together, and resume bit for bit.

    One process asks to stop within an epoch: all do at the next step at which values are logged, or else at its end.
    """
    run_script(tmp_path, "limited.py", torchrun=3)
    found = [torch.load(tmp_path / str(rank)) for rank in range(3)]
    for own in found:
        # Each epoch has the seven batches of the process with the fewest; one process asks to stop at step 17.
        steps = [3, 6, 10, 13, 17]
        assert own["at"] == [(0, True)] + [(step, False) for step in steps]
        assert own["again"] == [(step, False) for step in steps if step > 10]
        assert own["stopped"] == [6, 6, 7, 4]
        assert_same(own["whole"], own["resumed"])
        assert_same(own["whole"], found[0]["whole"])


@pytest.mark.slow
def test_processes_validate_after_a_time_at_the_same_step(tmp_path: Path) -> None:
    """Their batches take different times; they talk about it far less often than once a batch."""
    run_script(tmp_path, "timed_validation.py", torchrun=3)
    (at, talks), *others = [torch.load(tmp_path / str(rank)) for rank in range(3)]
    assert all(other == (at, talks) for other in others)
    # A step of process 0 takes 3/512 of a second: 0.2 seconds have passed after 35 of them.
    assert at == list(range(35, 202, 35))
    assert talks < 202 / 4
