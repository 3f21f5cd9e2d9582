"""Buffers, such as the running means of batch norm."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import run_script


def test_evaluation_uses_process_0s_buffers_and_a_resumed_fit_each_process_its_own(tmp_path: Path) -> None:
    """``val`` is that of DDP, which sends process 0's at each step; a fit resumed within an epoch is the same fit."""
    said = run_script(tmp_path, "norms.py")
    assert said["fsdp"]["val"] == pytest.approx(said["ddp"]["val"], rel=1e-5)
    assert said["fsdp"]["means"] == pytest.approx(said["ddp"]["means"], rel=1e-5)
    assert said["resumed"] == said["fsdp"]
