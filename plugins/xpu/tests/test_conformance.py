"""The conformance kit of core on two simulated GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_hal_devkit import check_backends

from .conftest import needs_backward, needs_simulation

pytest.importorskip("acme_driver", reason="needs the simulated devices")
pytestmark = [needs_simulation, pytest.mark.usefixtures("machine")]


@needs_backward
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tiers", ["T0,T1", pytest.param("T0,T1,T2,T3", marks=pytest.mark.exhaustive)])
def test_it_passes_the_kit(tmp_path: Path, tiers: str) -> None:
    """The conformance kit passes on two simulated GPUs; CI runs what needs no device."""
    options = [f"--tiers={tiers}", "--backend-devices=2", "--hide-devices=FAKE_GPUS="]
    check_backends("accelerator:xpu", folder=tmp_path, options=options)
