"""The conformance kit of core, on the backends of this package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch_hal_cuda import detect

pytest.importorskip("core.testing.plugin", reason="needs core's conformance kit")


def test_it_passes_the_kit(tmp_path: Path) -> None:
    """The kit passes for every backend; what takes a GPU is not run where there is none."""
    backends = [f"--backend={backend}" for backend in ("accelerator:cuda", "strategy:dp", "strategy:ddp2")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "core.testing.plugin"]
    done = subprocess.run(
        [*command, "--pyargs", "core.testing.suite", *backends, "--hide-devices", "CUDA_VISIBLE_DEVICES="],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for backend in ("accelerator:cuda", "strategy:dp", "strategy:ddp2"):
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"conformance of {backend}"))
        assert "passed" in line
        assert "failed" not in line
    if detect.count() == 0:
        assert "not run" in done.stdout
