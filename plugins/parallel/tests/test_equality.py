"""Every mesh trains as one process does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

SCRIPTS = Path(__file__).parent / "scripts"


def run_script(out: Path, *arguments: object) -> dict[str, Any]:
    out.mkdir()
    run_python(SCRIPTS / "loops.py", *arguments, cwd=out, warnings="ignore", env={"OUT": str(out)})
    said: dict[str, Any] = json.loads((out / "said.json").read_text())
    return said


@pytest.mark.parametrize(
    ("processes", "meshes"),
    [
        (2, ["1F1B", "context"]),
        *(pytest.param(count, [], marks=pytest.mark.exhaustive) for count in (2, 3, 4, 8)),
    ],
)
def test_it_trains_as_one_process(processes: int, meshes: list[str], tmp_path: Path) -> None:
    """Losses step by step, norms before clipping and the loss on new data are those of one process."""
    one, found = run_script(tmp_path / "one", 1), run_script(tmp_path / "some", processes, *meshes)
    assert found
    for name, results in found.items():
        expected = one[f"one {name.split()[-1]}"]
        for kind in ("losses", "norms", "evaluated"):
            assert results[kind] == pytest.approx(expected[kind], rel=1e-5, abs=1e-5), name
