"""Each third party's package is installed, and passes its own tests in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Install

_HERE = Path(__file__).parent
_PACKAGES = ("torch-acme", "torch-hal-acme", "stand-ins")


@pytest.mark.timeout(600)  # the first run on a machine compiles the simulation, and others of it wait meanwhile
@pytest.mark.parametrize("package", _PACKAGES)
def test_package(install: Install, package: str) -> None:
    """The package's own tests pass where it is installed beside core."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        env=install(*_PACKAGES),
        cwd=_HERE / package,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
