"""The conformance kit of core on the simulated GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import needs_simulation

pytest.importorskip("core.testing.plugin", reason="needs core's conformance kit")
pytest.importorskip("acme_driver", reason="needs the simulated devices")


@needs_simulation
@pytest.mark.timeout(600)
def test_it_passes_the_kit(mac: Path, tmp_path: Path) -> None:
    """The kit passes on one device; what is skipped is what the accelerator declares to lack."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "core.testing.plugin"]
    done = subprocess.run(
        [*command, "--pyargs", "core.testing.suite", "--backend=accelerator:mps", "--backend-devices=1"],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("conformance of accelerator:mps"))
    assert "passed" in line
    assert "failed" not in line
