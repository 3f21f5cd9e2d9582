"""Training on simulated NPUs by name, and what the accelerator says of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("acme_driver", reason="needs the simulated devices")

import device_problem
import torch
from device_problem import OPTIONS, Classifier, loader, losses_on_the_cpu
from python_processes import run_python
from torch_hal_npu import NPUAccelerator, detect

from torch_hal import Trainer
from torch_hal.errors import BackendError, DeviceError

from .conftest import needs_simulation

pytestmark = [needs_simulation, pytest.mark.usefixtures("machine")]
TWO_DEVICES = Path(device_problem.__file__).with_name("two_devices.py")


@pytest.mark.parametrize("devices", [[1], 1])
def test_training_equals_the_cpu(devices: Any) -> None:
    """By name, everything is on the chosen NPU, and the losses are the CPU's."""
    module = Classifier()
    trainer = Trainer(accelerator="npu", devices=devices, **OPTIONS)
    trainer.fit(module, loader())
    assert isinstance(trainer.runtime.strategy.accelerator, NPUAccelerator)
    assert module.seen == {"npu:0" if devices == 1 else "npu:1"}
    assert module.losses == pytest.approx(losses_on_the_cpu(), abs=1e-6)


def test_two_npus_equal_the_cpu(tmp_path: Path) -> None:
    """Two processes over HCCL, found by "auto", train to the losses of a plain loop on the CPU."""
    output = run_python(TWO_DEVICES, "npu", "hccl", cwd=tmp_path).stdout
    assert "rank 0 equal" in output
    assert "rank 1 equal" in output


def test_what_it_says_of_a_device() -> None:
    """Statistics are those of the device that is asked about, and random state can be restored exactly."""
    accelerator, device = NPUAccelerator(), torch.device("npu", 1)
    accelerator.import_backend()
    before = accelerator.get_device_stats(device)
    kept = torch.zeros(1 << 18, device=device)
    after = accelerator.get_device_stats("npu:1")
    assert after["memory_allocated_bytes"] - before["memory_allocated_bytes"] == kept.nbytes
    assert before["memory_free_bytes"] - after["memory_free_bytes"] == kept.nbytes
    assert accelerator.fork_unsafe_reason() == "torch.npu is already initialized"
    state = accelerator.get_rng_state(device)
    drawn = torch.rand(4, device=device).tolist()
    accelerator.set_rng_state(state, device)
    assert torch.rand(4, device=device).tolist() == drawn


def test_errors(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An NPU that is not there is refused; a library or a variable that fails is named with what to do."""
    with pytest.raises(DeviceError, match="available: devices 0 to 1"):
        Trainer(accelerator="npu", devices=3, **OPTIONS)
    monkeypatch.setenv(detect.VISIBLE, "all")
    assert NPUAccelerator().is_available() is False
    assert "ASCEND_RT_VISIBLE_DEVICES='all'" in caplog.text
    with pytest.raises(BackendError, match="'npu': counting NPUs failed: ASCEND_RT_VISIBLE_DEVICES='all'"):
        NPUAccelerator().auto_device_count()
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(BackendError, match=r"torch_npu cannot be imported: .*set_env.sh"):
        NPUAccelerator().import_backend()
