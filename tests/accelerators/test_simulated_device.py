"""The simulated device, and the accelerator that serves it: each in separate processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import RunSimulated

_HERE = Path(__file__).parent


def test_the_device(run_simulated: RunSimulated) -> None:
    """Tensors, training, autocast, random numbers, memory and core's accelerator on two simulated devices."""
    root = _HERE.parents[1]
    output = run_simulated(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={root}", _HERE / "simulated_checks.py"
    )
    assert " passed" in output


def test_no_device_found(run_simulated: RunSimulated) -> None:
    """Where the vendor's package is installed and finds no device, its type is known and unavailable."""
    code = (
        "import simx; from core.accelerators import TorchDeviceAccelerator as T; "
        "from core.accelerators.torch_device import device_types as d; "
        "a = T('simx'); print(d(), a.is_available(), a.auto_device_count())"
    )
    assert run_simulated("-c", code, devices=0).split() == ["()", "False", "0"]


@pytest.mark.slow
def test_its_own_collectives(run_simulated: RunSimulated, tmp_path: Path) -> None:
    """Two processes train under DistributedDataParallel over the vendor's own backend to the CPU's bits."""
    code = (
        "import subprocess, sys; "
        "ranks = [subprocess.Popen([sys.executable, *sys.argv[1:2], str(r), sys.argv[2]]) for r in range(2)]; "
        "sys.exit(max(rank.wait() for rank in ranks))"
    )
    output = run_simulated("-c", code, _HERE / "scripts" / "simulated_ddp.py", tmp_path / "rendezvous")
    assert "rank 0 done" in output
    assert "rank 1 done" in output
