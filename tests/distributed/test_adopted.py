"""A process group that the program around a run has made, as Ray and notebooks of clusters do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import run_script


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What three processes said, by rank."""
    out = tmp_path_factory.mktemp("adopted")
    run_script(out, "adopted.py", torchrun=3)
    return [json.loads((out / f"said{rank}.json").read_text()) for rank in range(3)]


def test_a_run_uses_the_group_that_exists(said: list[dict[str, Any]]) -> None:
    """Its collectives and its averaged gradients are those of all processes of the group."""
    assert [part["gathered"] for part in said] == [[0.0, 1.0, 2.0]] * 3
    assert [part["gradient"] for part in said] == [[2.0, 2.0]] * 3
    assert said[0]["weights"] == said[1]["weights"] == said[2]["weights"]


def test_the_group_is_there_afterwards(said: list[dict[str, Any]]) -> None:
    """Whoever made the group goes on with it, also after two runs."""
    assert [(part["afterwards"], part["total"]) for part in said] == [(True, 3.0)] * 3


@pytest.mark.parametrize(("argument", "remedy"), [("timeout", "init_process_group"), ("backend", "destroy_process")])
def test_what_differs_from_the_group_is_refused(said: list[dict[str, Any]], argument: str, remedy: str) -> None:
    """The error names the argument and what to do."""
    for part in said:
        assert argument in part[argument]
        assert remedy in part[argument]
