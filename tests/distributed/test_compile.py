"""Compiled steps in several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .conftest import run_script


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    """Parameters, names and running statistics are those of steps that are not compiled, also with sync_batchnorm."""
    run_script(tmp_path, "compiled.py")
    for rank in (0, 1):
        eager, compiled = (torch.load(tmp_path / f"{name}{rank}.pt") for name in ("eager", "compiled"))
        torch.testing.assert_close(compiled, eager)
