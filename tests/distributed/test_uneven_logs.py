"""Logging where processes take different numbers of steps, or log in other orders and under other names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import run_script


def test_logged_with_sync_dist_in_steps_that_not_every_process_has(tmp_path: Path) -> None:
    """Three processes evaluate four batches, log by step and by epoch, and do not wait for steps of others."""
    done = run_script(tmp_path, "uneven_logs.py")
    # Other processes lack what prepare_data assigns.
    assert done.stderr.count("Items.prepare_data has assigned 'changed', 'kept' of self in process 0, and not in") == 2
    # The DataModule's data is prepared once for each of the two runs with it, before any process loads it.
    assert (tmp_path / "prepared").read_text() == "once\ndone\n" * 2
    said = json.loads((tmp_path / "logs.json").read_text())
    for stage in ("fit", "test"):
        assert said[stage]["val_epoch"] == pytest.approx(sum(range(14)) / 14)
        assert said[stage]["sum_epoch"] == pytest.approx(sum(range(14)))
    assert said["fit"]["val"] == said["fit"]["val_epoch"]
    # Twelve items in batches of two, over three processes: the means of the first six, and of the last six.
    steps = [metrics["train_step"] for _, metrics in said["sent"] if "train_step" in metrics]
    assert steps == pytest.approx([sum(range(6)) / 6, sum(range(6, 12)) / 6])
    assert said["fit"]["train_epoch"] == said["fit"]["train"] == pytest.approx(sum(range(12)) / 12)
    # A process without a batch has the epoch's value under both names, which callbacks may monitor.
    assert [json.loads((tmp_path / f"alone{rank}.json").read_text()) for rank in range(3)] == [[1.5, 1.5]] * 3
    # A sum over steps and processes has each value once.
    assert [metrics["items_step"] for _, metrics in said["sent"] if "items_step" in metrics] == [6, 6]
    assert said["fit"]["items_epoch"] == 12


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_values_of_steps_are_matched_by_name(tmp_path: Path, world_size: int) -> None:
    """Whatever the order of the calls; what only some processes log is an error in all of them, which names them."""
    run_script(tmp_path, "named_logs.py", str(world_size))
    said, *others = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(world_size)]
    ranks, last = range(world_size), 7
    reductions: list[Callable[[list[int]], float]] = [lambda values: sum(values) / len(values), sum, min, max]
    orders = {f"v{n}": reductions[n % 4]([n * (rank + 1) + last for rank in ranks]) for n in range(20)}
    mean_rank = sum(ranks) / world_size
    orders |= dict.fromkeys(["both", "both_step", "both_epoch"], mean_rank)
    assert said["orders"] == pytest.approx(orders)
    # One collective after the first step and one every four steps; what is read is that of the last one.
    assert said["collectives"] == [0, 1, 1, 1, 2, 2, 2, 2]
    assert said["read"] == [None, *[mean_rank] * 3, *[3 + mean_rank] * 4]
    assert said["sent"] == [[step, {"x": step + mean_rank, "epoch": 0}] for step in (3, 7)]
    assert said["score"] == (5 - 15 * (world_size - 1)) / world_size
    for other in others:
        assert {**other, "sent": said["sent"]} == said
    of_rank = [f"rank{'s' * (len(group) > 1)} {', '.join(map(str, group))}" for group in ([0], [*ranks][1:])]
    rest = [f"rank{'s' * (world_size > 2)} {', '.join(str(rank) for rank in ranks if rank != 1)}", "rank 1"]
    batches = "; ".join(f"rank {rank}: 'a' with reduce_fx='mean' in batch {2 + rank}" for rank in ranks[:2])
    expected = {
        "other_names": (1, f"{of_rank[0]}: 'a'; {of_rank[1]}: 'b'."),
        "in_zero_only": (1, f"{of_rank[0]}: 'a'; {of_rank[1]}: nothing."),
        "in_one_only": (1, f"{rest[0]}: nothing; {rest[1]}: 'a'."),
        "later_in_zero_only": (8, f"{of_rank[0]}: 'a'; {of_rank[1]}: nothing more."),
        "other_reductions": (1, f"{of_rank[1]}: 'a' with reduce_fx='sum' in batch 0."),
        "other_batches": (4, batches if world_size == 2 else "'a'"),
        "epoch_in_zero_only": (8, "logged in this epoch by rank(s) 0, and not by rank(s) 1"),
        "epoch_reductions": (8, "reduce_fx differs between processes: rank 0: 'mean'; rank 1: 'sum'"),
    }
    for case, (step, text) in expected.items():
        assert said[case][0] == step, case
        assert text in said[case][1]


def test_a_process_without_a_batch(tmp_path: Path) -> None:
    """An error in its hook of the epoch's end says that it had none; the error of another process does not."""
    said = run_script(tmp_path, "no_batch_here.py", expect=1).stderr
    assert "rank 1 of 2 failed: IndexError: list index out of range\n" in said
    note = "Process 1 had no batch to validate: there are fewer batches than processes, and no sample is repeated."
    assert said.rstrip().splitlines()[-1].strip().startswith(note)
    assert "Process 0 had no batch" not in said
