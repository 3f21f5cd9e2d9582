"""What a vendor outside of the project does: install core, the devkit and its own packages, and run the kit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from python_processes import run_python

from .conftest import Install

CORE, DEVKIT = "../..", "../../plugins/devkit"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("devices", [1, 3])
def test_acme_passes_the_whole_kit(install: Install, tmp_path: Path, devices: int) -> None:
    """Built and installed away from the repository, core has no line for Acme, and Acme's cards pass every test."""
    env = {**install(CORE, DEVKIT, "torch-acme", "torch-hal-acme"), "ACME_DEVICES": str(devices)}
    found = run_python("-c", "import core; print(core.__file__)", cwd=tmp_path, env=env)
    assert found.stdout.startswith(str(env["PYTHONPATH"]).split(os.pathsep)[0])

    kit = ("-q", "-p", "no:cacheprovider", "-p", "torch_hal_devkit.plugin", "--pyargs", "torch_hal_devkit.suite")
    backend = ("--backend", "accelerator:acme", "--backend-devices", devices, "--hide-devices", "ACME_DEVICES=0")
    report = ("--hardware", "simulated", "--conformance-report", "report.json")
    run_python("-m", "pytest", *kit, *backend, *report, "-W", "error", cwd=tmp_path, env=env, timeout=580)
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["complete"] is True
    (suite,) = written["suites"]
    others = {test["id"]: test["reason"] for test in suite["tests"] if test["outcome"] != "passed"}
    assert suite["unsupported"] == {}
    if devices == 1:
        assert set(others.values()) == {"1 device found; the test needs 2"}
    else:
        assert others == {}
    assert len(suite["tests"]) > 130
