"""Collectives and process control on three processes, with data that does not divide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import run_script


def test_collectives_of_three(tmp_path: Path) -> None:
    """Each gives what its formula says; what differs between processes is refused in all of them."""
    result = run_script(tmp_path, "collectives_of_three.py")
    assert result.stdout.splitlines() == ["through"]


@pytest.mark.parametrize(
    ("processes", "cases"),
    [("3", "40"), *(pytest.param(count, "400", marks=pytest.mark.exhaustive) for count in "23")],
)
def test_gather_for_metrics_of_random_loaders(processes: str, cases: str, tmp_path: Path) -> None:
    """Every item once, in order: uneven data, streams, batch samplers, loops that are left, and nested ones."""
    result = run_script(tmp_path, "gather_for_metrics.py", processes, cases)
    assert result.stdout.splitlines() == [f"all {cases} cases"]


def test_gather_for_metrics_names_the_processes_without_a_batch(tmp_path: Path) -> None:
    """With ``even_batches=False`` it does not wait for them; what is collected in the loop is gathered after it.

    One value for a batch that has padding is gathered with a warning, in process 0. So is a loader prepared that has no
    batch for so many processes.
    """
    run_script(tmp_path, "absent.py")
    by_rank: list[dict[str, Any]] = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(3)]
    for rank, found in enumerate(by_rank):
        for kind in ("map", "evaluation", "stream", "dispatched"):
            assert found[kind]["collected"] == list(range(34)), kind
            assert found[kind]["items"] == list(range(24)), kind
            refused = found[kind]["error"]
            assert ("gather_for_metrics: rank(s) 2 of 3 have no batch left" in refused) == (rank < 2), kind
            assert ("Leave even_batches=False out" in refused) == (rank < 2), kind
        warnings = found["warnings"]
        assert len(warnings) == (1 if rank < 2 else 0)
        assert all("reduce('sum'): rank(s) 2 of 3 have no batch left" in text for text in warnings)
        expected = ["input_data['mean'] is one value for a batch that has padding"] if rank == 0 else []
        assert len(found["padded"]) == len(expected)
        assert all(text in said for text, said in zip(expected, found["padded"], strict=True))
        (emptied,) = found["emptied"] if rank == 0 else [*found["emptied"], ""]
        assert ("no batch. Its data has 23 item(s), fewer than 8 for each of the 3" in emptied) == (rank == 0)


@pytest.mark.slow
def test_gathering_in_steps_of_which_a_process_has_fewer(tmp_path: Path) -> None:
    """Seven batches, or one, for three processes: an error in all of them says where to gather; four each are none."""
    run_script(tmp_path, "gathers_in_steps.py")
    said, *others = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert others == [said, said]
    calls = {"module": "strategy.all_gather", "strategy": "strategy.reduce('mean')", "runtime": "gather"}
    assert set(said) == {f"{name} {case}" for name in calls for case in ("validate 14", "test 2")}
    for name, call in calls.items():
        for stage, rows, number, hook in (("validate", 14, 2, "on_validation"), ("test", 2, 0, "on_test")):
            message = said[f"{name} {stage} {rows}"]
            assert f"rank 0: {call} (" in message
            assert f"ranks 1, 2: the end of {stage} (after {number} batch(es); others may have more" in message
            assert f"gather in {hook}_epoch_end)" in message
