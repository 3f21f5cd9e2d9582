"""Three processes, and data that they do not divide evenly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator
from torch.utils.data import DataLoader

from .loaders import flat


def shuffled(generator: Generator | None = None) -> list[list[int]]:
    """Two passes of plain torch."""
    loader: DataLoader[int] = DataLoader(range(34), 8, shuffle=True, generator=generator)  # type: ignore[arg-type]
    return [flat(list(loader)) for _ in range(2)]


def read_by_all(script: str, out: Path) -> list[Any]:
    """What each of the processes of ``script`` has written."""
    environ = {**os.environ, "OUT": str(out), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / "scripts" / script)]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(3)]


def test_three_processes(tmp_path: Path) -> None:
    """What they gather is what plain torch reads in one process, in order, for each seed, and without padding.

    Iterable data is read by one of them for all, with workers too, and without tensors in its batches.
    An error of the process that reads for all is raised in each, which goes on.
    """
    said = read_by_all("three.py", tmp_path)
    expected = {}
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected[f"seed {seed}"] = shuffled()
    expected["generator"] = shuffled(Generator().manual_seed(7))
    items = list(range(34))
    for number, rank in enumerate(said):
        text = "ValueError: item 30 is damaged"
        told = ["CoreError", f"dispatch_batches: the process that reads the data failed: {text}"]
        assert rank["damaged"] == (text.split(": ") if number == 0 else told)
        assert {name: rank[name] for name in expected} == expected
        assert rank["evaluation"] == items
        assert rank["dispatched map"] == rank["dispatched stream"] == rank["stream"] == [items, 2]
        assert rank["workers"] == items
        assert rank["read by"] == (2 if number == 0 else 0)
        assert rank["words"] == list("abcdefg")
    assert [rank["uneven"] for rank in said] == [[*range(8), *range(24, 32)], [*range(8, 16), 32, 33], [*range(16, 24)]]


DIVIDED = ["asks torch", "asks the environment", "in rank 0 only", "sampler", "subset", "random split"]
DIVIDED += ["uneven"]
WARNED = ["is told", "by a function", "augmented by rank", "tensors", "rows"]


@pytest.mark.slow
def test_data_that_is_already_divided(tmp_path: Path) -> None:
    """Is not divided again without a word, with workers too; what only draws random numbers trains."""
    said = read_by_all("divided.py", tmp_path)
    assert len(said[0]) == 38
    for case in said[0]:
        name = case.partition(", ")[0]
        ranks = [rank[case] for rank in said]
        errors, warned = [rank["error"] for rank in ranks], [text for rank in ranks for text in rank["warnings"]]
        assert any(errors) == (name in DIVIDED), (case, errors)
        assert len(warned) == (name in WARNED), (case, warned)
        for text in filter(None, (*errors, *warned)):
            assert "sharded=True" in text, case
            assert "use_distributed_sampler=False" in text, case
        if not any(errors) and name not in ("is told", "by a function", "augmented", "tensors", "rows"):
            read = sorted(int(value) for rank in ranks for value in rank["found"])
            assert read == list(range(48)), case
