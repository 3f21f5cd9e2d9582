"""The conformance kit of core, on the backends of this package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("backend", ["accelerator:ipu", "strategy:ipu"])
def test_it_passes_the_kit(backend: str, tmp_path: Path) -> None:
    """On the IPU Model, which is one device, all that is declared works; what fails is what is known to."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "core.testing.plugin"]
    options = ["--pyargs", "core.testing.suite", "--backend", backend, "--hide-devices", "POPTORCH_IPU_MODEL="]
    known = Path(__file__).with_name(f"expected_failures_{backend.partition(':')[0]}.toml")
    options += ["--backend-devices", "1", "--expected-failures", str(known)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "IPUOF_"))}
    done = subprocess.run(
        [*command, *options],
        env={**environ, "POPTORCH_IPU_MODEL": "1"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"conformance of {backend}"))
    assert " passed" in line
    assert " failed" not in line.replace("expected to fail", "")
