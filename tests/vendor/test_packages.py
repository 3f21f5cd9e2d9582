"""Each third party's package is installed, and passes its own tests in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_PACKAGES = ("torch-acme", "torch-hal-acme", "stand-ins")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages, as an installer leaves them."""
    target = tmp_path_factory.mktemp("vendor")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    packages = [str(_HERE / name) for name in _PACKAGES]
    subprocess.run(
        [*command, "--no-build-isolation", "--no-index", "--target", str(target), *packages], check=True, timeout=120
    )
    return target


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++"))), reason="the simulation is compiled by a C++ compiler")
@pytest.mark.timeout(600)  # the first run on a machine compiles the simulation, and others of it wait meanwhile
@pytest.mark.parametrize("package", _PACKAGES)
def test_package(installed: Path, package: str) -> None:
    """The package's own tests pass where it is installed beside core."""
    words = ("PYTEST_", "CORE_", "ACME_DEVICES", "TORCH_DEVICE_BACKEND_AUTOLOAD")
    env = {key: value for key, value in os.environ.items() if not key.startswith(words)}
    env["PYTHONPATH"] = os.pathsep.join([str(installed), *filter(None, [env.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        env=env,
        cwd=_HERE / package,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
