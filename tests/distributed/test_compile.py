"""Compiled steps in several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .conftest import run_script


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    """Parameters, names and running statistics are those of eager steps; process 0 says what it took."""
    said = run_script(tmp_path, "compiled.py").stderr
    for kind in ("", "_apart"):
        for rank in (0, 1):
            eager, compiled = (torch.load(tmp_path / f"{name}{kind}{rank}.pt") for name in ("eager", "compiled"))
            torch.testing.assert_close(compiled, eager)
    assert said.count("compile: training_step took ") == 2
