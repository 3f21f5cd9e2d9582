"""ACCL, the cards' collectives."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import RunScript, refused_by_cuda


@pytest.mark.parametrize("device_type", ["acme", pytest.param("hpu", marks=refused_by_cuda), "xla"])
def test_two_processes(run_script: RunScript, tmp_path: Path, device_type: str) -> None:
    """Collectives give what their formulas say; DDP and FSDP train to the losses of the CPU over gloo."""
    devices = "2" if device_type == "acme" else "0"
    output = run_script("collectives.py", device_type, str(tmp_path / "meeting"), processes=2, ACME_DEVICES=devices)
    assert "rank 0 done" in output
    assert "rank 1 done" in output
