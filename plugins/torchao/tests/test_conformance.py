"""The conformance kit of core on the precisions of this package."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_hal_devkit import check_backends

pytest.importorskip("torchao", reason="torchao is not installed; run nox -s torchao")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["fp8-mixed", "int8-qat", pytest.param("int4-qat", marks=pytest.mark.exhaustive)])
def test_it_passes_the_kit(name: str, tmp_path: Path) -> None:
    """All that is not declared otherwise works; nothing is expected to fail."""
    check_backends(f"precision:{name}", folder=tmp_path, min_passed=40)
