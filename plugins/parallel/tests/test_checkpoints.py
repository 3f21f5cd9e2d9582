"""Checkpoints of the Trainer: a run goes on from one that another mesh, on other processes, has saved."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from .conftest import run_script

Saved = tuple[Path, dict[str, float], dict[str, Any]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The folder, the metrics of four epochs on one process, and what meshes of two processes said."""
    out = tmp_path_factory.mktemp("saved")
    one = run_script(out, "trainers.py", 1, "one+")
    some = run_script(out, "trainers.py", 2, "pipeline", "tensor<pipeline", "context<one+")
    return out, one["one+"], one | some


def check(found: dict[str, Any], expected: dict[str, float]) -> None:
    """All metrics of the last epoch; that of a step is of rank 0's items only."""
    for name in ("train_epoch", "val"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5), name


def test_a_pipeline_logs_no_other_values(saved: Saved) -> None:
    """The pass over any values by which torch learns shapes calls no training_step, and so logs nothing."""
    assert saved[2]["pipeline first"] == pytest.approx(saved[2]["one+ first"], rel=1e-5)


@pytest.mark.parametrize("run", ["tensor<pipeline", "context<one+"])
def test_another_mesh_goes_on(saved: Saved, run: str) -> None:
    """A checkpoint of a pipeline goes on under tensor parallelism, and one of a single process as a mesh of two."""
    check(saved[2][run], saved[1])


@pytest.mark.parametrize(
    ("processes", "runs"),
    [
        pytest.param(4, ["mixed<pipeline"], marks=pytest.mark.slow),
        pytest.param(1, ["one<pipeline"], marks=pytest.mark.exhaustive),
        pytest.param(2, ["interleaved<pipeline", "pipeline<one+"], marks=pytest.mark.exhaustive),
    ],
)
def test_other_numbers_of_processes(saved: Saved, processes: int, runs: list[str]) -> None:
    """Model, optimizer and scheduler go on as if one process had trained all four epochs."""
    said = run_script(saved[0], "trainers.py", processes, *runs)
    for run in runs:
        check(said[run], saved[1])


@pytest.mark.slow
def test_a_pipeline_resumes_exactly(tmp_path: Path) -> None:
    """With dropout and batch norm: the pass by which torch learns shapes leaves no trace in either."""
    said = run_script(tmp_path, "trainers.py", 2, "pipeline+", "pipeline<pipeline+", NOISY="yes")
    assert math.isfinite(said["pipeline+"]["val"])  # computed with the statistics of batch norm
    assert said["pipeline<pipeline+"] == said["pipeline+"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("saving", "loading"),
    [
        pytest.param({2: ["tensor=2"]}, {3: ["pipeline=3"]}, marks=pytest.mark.slow),
        pytest.param({1: [], 2: [], 3: [], 4: []}, {1: [], 2: [], 3: [], 4: []}, marks=pytest.mark.exhaustive),
    ],
)
def test_meshes_read_each_others_checkpoints(
    saving: dict[int, list[str]], loading: dict[int, list[str]], tmp_path: Path
) -> None:
    """Whichever mesh of one to four processes has saved, every other one goes on with the losses of one process."""
    expected = run_script(tmp_path / "one", "exchange.py", "save", 1)["one"]
    count = 0
    for processes, names in saving.items():
        for mesh, losses in run_script(tmp_path, "exchange.py", "save", processes, *names).items():
            assert losses == pytest.approx(expected, rel=1e-5), mesh
            count += 1
    for processes, names in loading.items():
        found = run_script(tmp_path, "exchange.py", "load", processes, *names)
        assert len(found) >= count  # of each
        for mesh, losses in found.items():
            assert losses == pytest.approx(expected[2:], rel=1e-5), mesh
