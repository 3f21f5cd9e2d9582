"""Another number of processes continues a run; and what is exact in one that process 0 alone has saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

SCRIPT = Path(__file__).parent / "scripts" / "resharding.py"


def run(out: Path, phase: str, world: int) -> tuple[list[dict[str, Any]], str]:
    for old in out.glob("rank*.json"):
        old.unlink()
    ended = run_python(SCRIPT, phase, world, cwd=out, warnings="ignore", env={"OUT": str(out)})
    return [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))], ended.stderr


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], str]:
    """Three processes that stop after two global batches of 50 items."""
    out = tmp_path_factory.mktemp("first")
    return out, *run(out, "first", 3)


def test_the_main_process_alone(first: tuple[Path, list[dict[str, Any]], str]) -> None:
    """Weights and data go on; process 0 draws on, the others' generators are new, as a warning has said."""
    out, before, said = first
    assert said.count("save_state: not called by rank(s) 1, 2") == 1
    after, said = run(out, "again", 3)
    assert {rank["weight"] for rank in after} == {before[0]["weight"]}
    assert sorted([*before[0]["seen"], *after[0]["seen"]]) == list(range(50))
    assert after[0]["draws"] == before[0]["draws"]
    draws = [tuple(rank["draws"]) for rank in (*before, *after)]
    assert len(set(draws)) == 5
    for rank in (1, 2):
        assert f"rank {rank}: the states of its random number generators are not in the checkpoint" in said


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_another_number_of_processes(world: int, first: tuple[Path, list[dict[str, Any]], str]) -> None:
    """Is refused unless asked for; then each remaining sample is seen once, and all ranks draw different numbers."""
    out, before, _ = first
    after, _ = run(out, "other", world)
    for rank in after:
        assert f"saved by 3 process(es), and this run has {world}" in rank["refused"]
        assert "reshard=True" in rank["refused"]
        assert rank["weight"] == before[0]["weight"]
    assert sorted([*before[0]["seen"], *after[0]["seen"]]) == list(range(50))
    assert [rank["draws"] for rank in after[:3]] == [rank["draws"] for rank in before[: min(world, 3)]]
    assert len({tuple(rank["draws"]) for rank in after}) == world
