"""The device-neutral accelerator in a process whose torch has no device; with devices, see test_simulated_device."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from core.accelerators import TorchDeviceAccelerator
from core.accelerators.torch_device import device_types
from core.errors import BackendError, UnknownNameError

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="this torch has its own device")

# A type that torch knows and has no module for, so that a test can put one there.
_TYPE = "hpu"


def _put(monkeypatch: pytest.MonkeyPatch, **functions: object) -> None:
    monkeypatch.setattr(torch, _TYPE, SimpleNamespace(**functions), raising=False)


def _broken() -> int:
    raise OSError("the driver is too old")


def test_nothing_reported() -> None:
    """The host's own CPU is not a device type, and asking for the best device where there is none is refused."""
    assert device_types() == ()
    with pytest.raises(BackendError, match="torch reports no device on this machine"):
        TorchDeviceAccelerator()


def test_a_type_that_is_not_there() -> None:
    """A type that torch knows and has no device of is unavailable, which is not an error; it has no device to give."""
    accelerator = TorchDeviceAccelerator(_TYPE)
    assert accelerator.name == _TYPE
    assert accelerator.is_available() is False
    assert accelerator.auto_device_count() == 0
    assert accelerator.fork_unsafe_reason() is None


@pytest.mark.parametrize("name", ["acme", "cpu", "hpu:1", ""])
def test_names_that_are_no_device_types(name: str) -> None:
    """A name that is not a device type of torch is refused; so is the CPU, which has its own accelerator."""
    with pytest.raises(UnknownNameError, match=f"name='{name}': not a device type that this torch supports"):
        TorchDeviceAccelerator(name)


def test_a_type_with_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A type is reported as soon as its module says that it is available, and serves all its devices."""
    _put(monkeypatch, is_available=lambda: True, device_count=lambda: 3)
    assert device_types() == (_TYPE,)
    accelerator = TorchDeviceAccelerator()
    assert accelerator.name == _TYPE
    assert accelerator.is_available() is True
    assert accelerator.parse_devices("auto") == [0, 1, 2]
    assert accelerator.get_parallel_devices([2, 0]) == [torch.device(_TYPE, 2), torch.device(_TYPE, 0)]


def test_devices_that_cannot_be_used_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that are counted but said to be unavailable are not offered."""
    _put(monkeypatch, is_available=lambda: False, device_count=lambda: 3)
    assert device_types() == ()
    assert TorchDeviceAccelerator(_TYPE).auto_device_count() == 0


def test_a_module_that_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A module that raises makes its type unavailable and nothing else; the cause is logged."""
    _put(monkeypatch, is_available=_broken, device_count=_broken)
    with caplog.at_level(logging.WARNING):
        assert TorchDeviceAccelerator(_TYPE).is_available() is False
    assert "torch.hpu: counting devices failed" in caplog.text
    assert "the driver is too old" in caplog.text
    assert device_types() == ()


def test_a_module_without_the_two_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that cannot be asked offers nothing."""
    _put(monkeypatch)
    assert TorchDeviceAccelerator(_TYPE).is_available() is False


def test_stats_under_any_module_s_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is told in bytes under one set of names, whatever the module calls its functions and takes."""
    device = torch.device(_TYPE, 1)
    _put(
        monkeypatch,
        memory_allocated=lambda device: 100 + device.index,
        max_memory_allocated=lambda device: 200,
        memory_reserved=lambda device: 300,
        mem_get_info=lambda device: (400, 500),
    )
    assert TorchDeviceAccelerator(_TYPE).get_device_stats(str(device)) == {
        "memory_allocated_bytes": 101,
        "memory_allocated_peak_bytes": 200,
        "memory_reserved_bytes": 300,
        "memory_free_bytes": 400,
        "memory_total_bytes": 500,
    }
    _put(monkeypatch, current_allocated_memory=lambda: 0, driver_allocated_memory=lambda: 2)
    assert TorchDeviceAccelerator(_TYPE).get_device_stats(device) == {
        "memory_allocated_bytes": 0,
        "memory_reserved_bytes": 2,
    }
    _put(monkeypatch)
    assert TorchDeviceAccelerator(_TYPE).get_device_stats(device) == {}


def test_forking_after_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the devices are in use in a process, it says why it must not be forked."""
    _put(monkeypatch, is_initialized=lambda: True)
    assert TorchDeviceAccelerator(_TYPE).fork_unsafe_reason() == "torch.hpu is already initialized"
    _put(monkeypatch, is_initialized=lambda: False)
    assert TorchDeviceAccelerator(_TYPE).fork_unsafe_reason() is None
