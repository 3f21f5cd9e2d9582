"""What lies here has test suites of its own, which are run where it is installed: see test_packages.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

collect_ignore_glob = ["torch-*", "stand-ins"]

_HERE = Path(__file__).parent
_OURS = ("PYTEST_", "CORE_", "ACME_DEVICES", "TORCH_DEVICE_BACKEND_AUTOLOAD")

Install = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Install packages of this folder, or others by their path, as an installer leaves them; the environment with them.

    Each set of packages is installed once, into a folder of its own.
    """
    if not any(map(shutil.which, ("c++", "g++"))):
        pytest.skip("the simulation is compiled by a C++ compiler")
    folders: dict[tuple[str, ...], Path] = {}

    def environment_with(*packages: str) -> dict[str, str]:
        if packages not in folders:
            folders[packages] = target = tmp_path_factory.mktemp("installed")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--no-build-isolation", "--no-index", "--target", str(target)]
            subprocess.run([*command, *(str(_HERE / package) for package in packages)], check=True, timeout=240)
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        path = [str(folders[packages]), *filter(None, [environ.get("PYTHONPATH")])]
        return {**environ, "PYTHONPATH": os.pathsep.join(path)}

    return environment_with
