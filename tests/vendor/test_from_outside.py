"""What an outside vendor does: install core's wheel and the own packages, and run the kit that came with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Install

CORE = "../.."


@pytest.mark.timeout(600)
@pytest.mark.parametrize("devices", [1, 2])
def test_acme_passes_the_whole_kit(install: Install, tmp_path: Path, devices: int) -> None:
    """Built and installed away from the repository, core has no line for Acme, and Acme's cards pass every test."""
    environ = {**install(CORE, "torch-acme", "torch-hal-acme"), "ACME_DEVICES": str(devices)}
    site = environ["PYTHONPATH"].split(os.pathsep)[0]
    where = "import core; print(core.__file__)"
    found = subprocess.run([sys.executable, "-c", where], env=environ, cwd=tmp_path, capture_output=True, check=True)
    assert found.stdout.decode().startswith(site)

    words = ["--backend", "accelerator:acme", "--backend-devices", str(devices), "--hide-devices", "ACME_DEVICES=0"]
    words += ["--hardware", "simulated", "--conformance-report", "report.json", "-W", "error"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "core.testing.plugin"]
    done = subprocess.run(
        [*command, "--pyargs", "core.testing.suite", *words],
        env=environ,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["complete"] is True
    (suite,) = report["suites"]
    others = {test["id"]: test["reason"] for test in suite["tests"] if test["outcome"] != "passed"}
    assert suite["unsupported"] == {}
    if devices == 1:
        assert set(others.values()) == {"1 device found; the test needs 2"}
    else:
        assert others == {}
    assert len(suite["tests"]) > 130
