"""Three processes, and data that they do not divide evenly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import Generator
from torch.utils.data import DataLoader

from .loaders import flat


def shuffled(generator: Generator | None = None) -> list[list[int]]:
    """Two passes of plain torch."""
    loader: DataLoader[int] = DataLoader(range(34), 8, shuffle=True, generator=generator)  # type: ignore[arg-type]
    return [flat(list(loader)) for _ in range(2)]


def test_three_processes(tmp_path: Path) -> None:
    """What they gather is what plain torch reads in one process, in order, for each seed, and without padding."""
    script = Path(__file__).parent / "scripts" / "three.py"
    environ = {**os.environ, "OUT": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(script)]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    expected = {}
    for seed in (1, 2):
        torch.manual_seed(seed)
        expected[f"seed {seed}"] = shuffled()
    expected["generator"] = shuffled(Generator().manual_seed(7))
    items = list(range(34))
    for rank in range(3):
        said = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert {name: said[name] for name in expected} == expected
        assert said["evaluation"] == items
        assert said["dispatched map"] == said["dispatched stream"] == said["stream"] == [items, 2]
