"""The packages in this folder have their own tests, which run where they are installed: see test_packages.py."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from python_processes import run_python

collect_ignore_glob = ["torch-*", "stand-ins"]

_HERE = Path(__file__).parent
Install = Callable[..., dict[str, str | None]]


@pytest.fixture(scope="session")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Install packages of this folder, or others by their path; returns the environment variables that find them.

    Each set of packages is installed once, into its own folder.
    """
    if not any(map(shutil.which, ("c++", "g++"))):
        pytest.skip("the simulation is compiled by a C++ compiler")
    folders: dict[tuple[str, ...], Path] = {}

    def environment_with(*packages: str) -> dict[str, str | None]:
        if packages not in folders:
            folders[packages] = target = tmp_path_factory.mktemp("installed")
            options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")
            projects = [_HERE / package for package in packages]
            run_python("-m", "pip", "install", *options, "--target", target, *projects, cwd=target)
        path = [str(folders[packages]), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), "ACME_DEVICES": None, "TORCH_DEVICE_BACKEND_AUTOLOAD": None}

    return environment_with
