"""What keeps the rules passes the kit: the CPU, and a simulated device with a plugin of a few lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .kit import run_kit


def test_the_cpu_passes(tmp_path: Path) -> None:
    """The CPU's accelerator passes; what it is not asked it has declared, or has no metadata or devices for."""
    run = run_kit(tmp_path, "--backend", "accelerator:cpu", "--tiers", "T0,T1,T2")
    assert run.code == 0, run.output
    (suite,) = run.report["suites"]
    assert suite["unsupported"].keys() == {"memory_stats"}
    assert run.ids("failed", "expected_failure", "works_undeclared") == set()
    assert {name.partition("::")[2] for name in run.ids("unsupported")} == {
        "test_devices_that_are_not_there_are_refused",
        "test_without_devices",
        "test_memory_is_counted",
        "test_memory_is_freed",
        "test_the_hosts_generator_is_another",
    }
    assert len(run.ids("passed")) > 120


@pytest.mark.exhaustive
def test_a_simulated_device_passes_everything(tmp_path: Path, site: list[Path]) -> None:
    """One simulated device passes every test but those that take two; those are for the vendor's, see tests/vendor."""
    arguments = ("--backend=accelerator:simx", "--hide-devices=SIMX_DEVICES=0", "--backend-devices=1")
    run = run_kit(tmp_path, *arguments, site=site, SIMX_DEVICES="1")
    assert run.code == 0, run.output
    tests = {name for name, test in run.tests.items() if test["tier"] != "T3"}
    assert run.ids("passed") == tests, run.output
    assert len(run.tests) > 130


def test_a_machine_without_the_hardware(tmp_path: Path, site: list[Path]) -> None:
    """Where no device is there, T0 and T1 pass, and the tests of a device are not run, with the reason."""
    run = run_kit(
        tmp_path,
        "--backend=accelerator:simx",
        "-k",
        "one_device_is_chosen or counts_devices or is_available",
        site=site,
        SIMX_DEVICES="0",
    )
    assert run.code == 0, run.output
    assert run.ids("passed") == {
        f"accelerator:simx::test_{name}"
        for name in ("detection_counts_devices", "is_available", "is_available_after_fork")
    }
    assert {test["reason"] for test in run.tests.values() if test["tier"] == "T2"} == {
        "no device found; the test needs 1"
    }


def test_importing_the_kit_is_light() -> None:
    """``torch_hal_devkit`` imports neither torch nor pytest, its plugin no torch, so a conftest still goes first."""
    code = (
        "import sys, torch_hal_devkit; assert not {'torch', 'pytest'} & set(sys.modules); "
        "import torch_hal_devkit.plugin; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
