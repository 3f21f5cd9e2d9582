"""The conformance kit of core, on the backends of this package."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_hal_cuda import detect
from torch_hal_devkit import check_backends


@pytest.mark.timeout(600)
def test_it_passes_the_kit(tmp_path: Path) -> None:
    """The kit passes for every backend; what takes a GPU is not run where there is none."""
    hidden = ["--hide-devices", "CUDA_VISIBLE_DEVICES="]
    said = check_backends(
        "accelerator:cuda", "strategy:dp", "strategy:ddp2", folder=tmp_path, options=hidden, seconds=580
    )
    if detect.count() == 0:
        assert "not run" in said
