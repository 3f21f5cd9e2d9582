"""A model is used again after a run has divided it: by Trainers, and in a second run of an own loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import run_script


def check(found: dict[str, Any], one: dict[str, Any]) -> None:
    """The numbers of one process."""
    for verb in ("same", "without a model", "fresh"):
        for name in ("val", "test"):
            assert found[verb][name] == pytest.approx(one[verb][name], rel=1e-5), verb
        assert [text for text, _ in found[verb]["predicted"]] == [text for text, _ in one[verb]["predicted"]]
        expected = [value for _, value in one[verb]["predicted"]]
        assert [value for _, value in found[verb]["predicted"]] == pytest.approx(expected, rel=1e-5), verb
    assert found["further"] == pytest.approx(one["further"], rel=1e-5)
    assert found["loop"] == pytest.approx(one["loop"], rel=1e-5)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("processes", "meshes"),
    [
        pytest.param(2, ["pipeline=2"], marks=pytest.mark.slow),
        pytest.param(2, ["tensor=2", "context=2", "data=2"], marks=pytest.mark.exhaustive),
        pytest.param(3, ["pipeline=3", "tensor=3", "context=3", "data=3"], marks=pytest.mark.exhaustive),
        pytest.param(
            4,
            [
                "data=2,pipeline=2",
                "data=2,tensor=2",
                "tensor=2,pipeline=2",
                "context=2,tensor=2",
                "pipeline=2,tensor=2,schedule=Interleaved1F1B",
            ],
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_after_a_fit(processes: int, meshes: list[str], tmp_path: Path) -> None:
    """Validated, tested, predicted and fitted further by the model that is there, and by a new one; 31 texts."""
    one = run_script(tmp_path, "again.py", 1, "one")["one"]
    for found in run_script(tmp_path, "again.py", processes, *meshes).values():
        check(found, one)
