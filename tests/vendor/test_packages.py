"""Each third party's package is installed, and passes its own tests in a separate process."""

from __future__ import annotations

from pathlib import Path

import pytest
from python_processes import run_python

from .conftest import Install

_HERE = Path(__file__).parent
_PACKAGES = ("torch-acme", "torch-hal-acme", "stand-ins")


@pytest.mark.timeout(600)  # the first run on a machine compiles the simulation, and others of it wait meanwhile
@pytest.mark.parametrize("package", _PACKAGES)
def test_package(install: Install, package: str) -> None:
    """The package's own tests pass where it is installed next to core."""
    done = run_python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=_HERE / package, env=install(*_PACKAGES), timeout=540
    )
    assert " passed" in done.stdout
