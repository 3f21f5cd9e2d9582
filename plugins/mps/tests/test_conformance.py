"""The conformance kit of core on the simulated GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_hal_devkit import check_backends

from . import machine
from .conftest import needs_backward, needs_simulation

pytest.importorskip("acme_driver", reason="needs the simulated devices")


@needs_backward
@needs_simulation
@pytest.mark.timeout(600)
def test_it_passes_the_kit(mac: Path, tmp_path: Path) -> None:
    """The kit passes on one device; what is skipped is what the accelerator declares to lack."""
    options = ["--backend-devices=1", f"--hide-devices={machine.HIDDEN}=1"]
    check_backends("accelerator:mps", folder=tmp_path, options=options)
