"""The conformance kit of core, on the backends of this package."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_hal_devkit import check_backends


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["accelerator:ipu", "strategy:ipu"])
def test_it_passes_the_kit(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the IPU Model, which is one device, all that is declared works; what fails is what is known to."""
    for name in ("IPUOF_CONFIG_PATH", "IPUOF_VIPU_API_PARTITION_ID"):
        monkeypatch.delenv(name, raising=False)
    known = Path(__file__).with_name(f"expected_failures_{backend.partition(':')[0]}.toml")
    options = ["--hide-devices=POPTORCH_IPU_MODEL=", "--backend-devices=1", f"--expected-failures={known}"]
    check_backends(backend, folder=tmp_path, options=options, environ={"POPTORCH_IPU_MODEL": "1"}, seconds=580)
