"""Training on simulated GPUs by name, and what the accelerator says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("acme_driver", reason="needs the simulated devices")

import device_problem
import torch
from device_problem import OPTIONS, Classifier, loader, losses_on_the_cpu
from python_processes import run_python
from torch_hal_xpu import XPUAccelerator, detect

from torch_hal import Trainer
from torch_hal.errors import BackendError, DeviceError

from .conftest import needs_backward, needs_simulation

pytestmark = [needs_simulation, pytest.mark.usefixtures("machine")]
TWO_DEVICES = Path(device_problem.__file__).with_name("two_devices.py")


@needs_backward
@pytest.mark.parametrize(("accelerator", "devices"), [("xpu", [1]), ("gpu", 1)])
def test_training_equals_the_cpu(accelerator: str, devices: Any) -> None:
    """By name and by alias, everything is on the chosen GPU, and the losses are the CPU's."""
    module = Classifier()
    trainer = Trainer(accelerator=accelerator, devices=devices, **OPTIONS)
    trainer.fit(module, loader())
    assert isinstance(trainer.runtime.strategy.accelerator, XPUAccelerator)
    assert module.seen == {"xpu:0" if devices == 1 else "xpu:1"}
    assert module.losses == pytest.approx(losses_on_the_cpu(), abs=1e-6)


@needs_backward
def test_two_gpus_equal_the_cpu(tmp_path: Path) -> None:
    """Two processes, found by "auto", train to the losses of a plain loop on the CPU."""
    output = run_python(TWO_DEVICES, "xpu", "accl", cwd=tmp_path).stdout
    assert "rank 0 equal" in output
    assert "rank 1 equal" in output


def test_what_it_says_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics are those of the device that is asked about; free and total memory are left out if unknown."""
    accelerator = XPUAccelerator()
    before = accelerator.get_device_stats("xpu:1")
    kept = torch.zeros(1 << 18, device="xpu:1")
    after = accelerator.get_device_stats(torch.device("xpu", 1))
    assert after["memory_allocated_bytes"] - before["memory_allocated_bytes"] == kept.nbytes
    assert before["memory_free_bytes"] - after["memory_free_bytes"] == kept.nbytes
    assert accelerator.fork_unsafe_reason() == "torch.xpu is already initialized"
    monkeypatch.setattr(torch.xpu, "is_initialized", lambda: False)
    assert XPUAccelerator().auto_device_count() == 2
    assert accelerator.fork_unsafe_reason() == "Intel's driver is already initialized"

    def unknown(device: object) -> None:
        raise RuntimeError("the driver does not report memory")

    monkeypatch.setattr(torch.xpu, "mem_get_info", unknown)
    assert not {"memory_free_bytes", "memory_total_bytes"} & accelerator.get_device_stats("xpu:1").keys()


def test_errors(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A GPU that is not there is refused; if counting fails, availability logs why, and the count raises it."""
    with pytest.raises(DeviceError, match="available: devices 0 to 1"):
        Trainer(accelerator="xpu", devices=3, **OPTIONS)

    def fails() -> int:
        raise RuntimeError("zeInit failed")

    monkeypatch.setattr(detect, "count", fails)
    assert XPUAccelerator().is_available() is False
    assert "zeInit failed" in caplog.text
    with pytest.raises(BackendError, match="'xpu': counting GPUs failed: zeInit failed"):
        XPUAccelerator().auto_device_count()
