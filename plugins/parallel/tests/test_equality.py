"""Every mesh trains as one process does."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import run_script


@pytest.mark.parametrize(
    ("processes", "meshes"),
    [
        (2, ["1F1B", "context"]),
        *(pytest.param(count, [], marks=pytest.mark.exhaustive) for count in (2, 3, 4, 8)),
    ],
)
def test_it_trains_as_one_process(processes: int, meshes: list[str], tmp_path: Path) -> None:
    """Losses step by step, norms before clipping and the loss on new data are those of one process."""
    one = run_script(tmp_path / "one", "loops.py", 1)
    found = run_script(tmp_path / "some", "loops.py", processes, *meshes)
    assert found
    for name, results in found.items():
        expected = one[f"one {name.split()[-1]}"]
        for kind in ("losses", "norms", "evaluated"):
            assert results[kind] == pytest.approx(expected[kind], rel=1e-5, abs=1e-5), name


@pytest.mark.exhaustive
def test_it_rounds_as_torch_does(tmp_path: Path) -> None:
    """In bf16-mixed a mesh is not the loop by hand, but what rounds alike is: batches in parts, and torch's layers."""
    said = run_script(tmp_path, "rounded.py")
    assert said["tensor"] == said["torch's tensor"]
    for name in ("data", "pipeline"):
        assert said[name] == pytest.approx(said["in parts"], rel=1e-6), name
    for name in ("data", "pipeline", "tensor"):
        assert said[name] == pytest.approx(said["one"], rel=5e-4), name
