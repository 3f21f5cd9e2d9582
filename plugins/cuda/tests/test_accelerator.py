"""The accelerator, as far as it can be known without a GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch_hal_cuda import CUDAAccelerator, detect
from torch_hal_cuda.stats import DeviceStats

from torch_hal import Trainer
from torch_hal.errors import BackendError, ConfigurationError, DeviceError

from .fake_pynvml import FakeNVML


class TestPresence:
    @pytest.fixture(autouse=True)
    def detected(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int | Exception], None]:
        """Make detection find so many GPUs, or fail."""
        found: list[int | Exception] = [0]

        def count() -> int:
            if isinstance(found[0], Exception):
                raise found[0]
            return found[0]

        monkeypatch.setattr(detect, "count", count)
        return lambda answer: found.__setitem__(0, answer)

    def test_devices_are_those_detected(self, detected: Callable[[int | Exception], None]) -> None:
        """Counts, limits and device names follow detection, without CUDA being started."""
        detected(3)
        accelerator = CUDAAccelerator()
        assert accelerator.is_available()
        assert accelerator.auto_device_count() == 3
        devices = accelerator.get_parallel_devices(accelerator.parse_devices([2, 0]))
        assert devices == [torch.device("cuda:2"), torch.device("cuda:0")]
        with pytest.raises(DeviceError, match="available: devices 0 to 2"):
            accelerator.parse_devices(4)
        assert accelerator.fork_unsafe_reason() is None

    def test_nothing_there(self) -> None:
        """Without GPUs it is unavailable, and asking for it by name says so."""
        assert CUDAAccelerator().is_available() is False
        assert CUDAAccelerator().auto_device_count() == 0
        with pytest.raises(BackendError, match="accelerator='cuda' cannot be used here"):
            Trainer(accelerator="cuda", enable_progress_bar=False)

    def test_a_broken_driver(
        self, detected: Callable[[int | Exception], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Availability never raises: a driver that fails is in the log; who asks for the number gets the error."""
        detected(RuntimeError("libnvidia-ml.so.1: nvmlInit_v2 failed"))
        assert CUDAAccelerator().is_available() is False
        assert "nvmlInit_v2 failed" in caplog.text
        with pytest.raises(BackendError, match=r"'cuda'.*counting GPUs failed: libnvidia-ml"):
            CUDAAccelerator().auto_device_count()

    def test_a_started_cuda_forbids_forking(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process in which CUDA was started says why it must not be forked."""
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        assert CUDAAccelerator().fork_unsafe_reason() == "torch.cuda is already initialized"

    def test_collectives_are_torchs_for_cuda(self) -> None:
        """Collectives are those that torch has for the device type."""
        assert CUDAAccelerator().process_group_backend(torch.device("cuda:1")) == "nccl"


class TestSettings:
    @pytest.fixture(autouse=True)
    def current(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The devices that were made current, in place of torch's doing so."""
        devices: list[int] = []
        monkeypatch.setattr(torch.cuda, "set_device", devices.append)
        return devices

    def test_they_are_made_and_undone(self, current: list[int]) -> None:
        """Settings take effect with the device, and teardown puts back what was there before."""
        before = _settings()
        accelerator = CUDAAccelerator(
            float32_matmul_precision="high",
            cudnn_allow_tf32=not before["allow_tf32"],
            cudnn_benchmark=not before["benchmark"],
            cudnn_deterministic=not before["deterministic"],
        )
        assert _settings() == before
        accelerator.setup_device(torch.device("cuda:1"))
        changed = {name: not value for name, value in before.items() if name != "matmul"}
        assert _settings() == {**changed, "matmul": "high"}
        torch.backends.cudnn.benchmark = before["benchmark"]  # set by the user, in the middle of a run
        accelerator.setup_device(torch.device("cuda:0"))  # for another thread, as dp does
        assert _settings() == {**changed, "matmul": "high", "benchmark": before["benchmark"]}
        assert current == [1, 0]
        accelerator.teardown()
        assert _settings() == before
        accelerator.teardown()
        assert _settings() == before

    def test_what_is_not_given_stays(self) -> None:
        """A setting that is not given stays as the user has it, also after teardown."""
        accelerator = CUDAAccelerator(cudnn_benchmark=False)
        accelerator.setup_device(torch.device("cuda:0"))
        before = torch.backends.cudnn.deterministic
        torch.backends.cudnn.deterministic = not before
        try:
            accelerator.teardown()
            assert torch.backends.cudnn.deterministic is not before
        finally:
            torch.backends.cudnn.deterministic = before

    @pytest.mark.parametrize(
        ("setting", "said"),
        [
            ({"float32_matmul_precision": "tf32"}, "float32_matmul_precision='tf32'.*'highest', 'high', 'medium'"),
            ({"cudnn_benchmark": "yes"}, "cudnn_benchmark='yes'.*True or False"),
            ({"cudnn_allow_tf32": 1}, "cudnn_allow_tf32=1"),
            ({"auto_select_gpus": 2}, "auto_select_gpus=2"),
        ],
    )
    def test_bad_ones_are_refused(self, setting: dict[str, Any], said: str) -> None:
        """A value that torch would not take, or take for another, is refused by name."""
        with pytest.raises(ConfigurationError, match=said):
            CUDAAccelerator(**setting)


def _settings() -> dict[str, Any]:
    cudnn = torch.backends.cudnn
    return {
        "matmul": torch.get_float32_matmul_precision(),
        "allow_tf32": cudnn.allow_tf32,
        "benchmark": cudnn.benchmark,
        "deterministic": cudnn.deterministic,
    }


class TestStats:
    _TORCHS: ClassVar = {
        "memory_allocated_bytes": 10,
        "memory_allocated_peak_bytes": 20,
        "memory_reserved_bytes": 30,
        "memory_free_bytes": 40,
        "memory_total_bytes": 50,
    }
    _UUIDS: ClassVar = ["1111", "2222"]
    _GPU: ClassVar = {"utilization": 87, "used": 600, "temperature": 61, "milliwatts": 250500}

    @pytest.fixture(autouse=True)
    def torchs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What torch tells of two GPUs."""
        for name, value in {"memory_allocated": 10, "max_memory_allocated": 20, "memory_reserved": 30}.items():
            monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40, 50))
        properties = [SimpleNamespace(uuid=uuid) for uuid in self._UUIDS]
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties[device.index])
        monkeypatch.setattr(torch.version, "hip", None)

    @contextmanager
    def _managed(self, monkeypatch: pytest.MonkeyPatch, nvml: FakeNVML) -> Iterator[CUDAAccelerator]:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        accelerator = CUDAAccelerator()
        yield accelerator
        accelerator.teardown()
        assert nvml.users == 0

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without nvidia-ml-py the statistics are torch's, and nothing is amiss."""
        find_spec = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pynvml" else find_spec(name))
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
        assert CUDAAccelerator().get_device_stats("cuda:0") == self._TORCHS

    def test_with_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With it, there are utilization, memory of all processes, temperature and power, in the named units."""
        nvml = FakeNVML({"GPU-1111": {}, "GPU-2222": self._GPU})
        with self._managed(monkeypatch, nvml) as accelerator:
            for _ in range(2):
                stats = accelerator.get_device_stats(torch.device("cuda:1"))
            assert nvml.users == 1
        assert nvml.asked == ["GPU-2222"]
        assert stats == {
            **self._TORCHS,
            "utilization_percent": 87,
            "memory_used_bytes": 600,
            "temperature_celsius": 61,
            "power_watts": 250.5,
        }

    def test_a_compute_instance(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A compute instance is found by its own UUID, and what it does not tell is left out."""
        errors = {"nvmlDeviceGetUtilizationRates": 3, "nvmlDeviceGetTemperature": 3, "nvmlDeviceGetPowerUsage": 4}
        nvml = FakeNVML({"GPU-1111": {}, "MIG-2222": self._GPU}, errors)
        with self._managed(monkeypatch, nvml) as accelerator:
            stats = accelerator.get_device_stats("cuda:1")
        assert stats == {**self._TORCHS, "memory_used_bytes": 600}

    def test_a_library_that_cannot_be_used(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A library that cannot be started costs its statistics, which the log says once."""
        with self._managed(monkeypatch, FakeNVML({}, {"nvmlInit": 18})) as accelerator:
            for _ in range(2):
                assert accelerator.get_device_stats("cuda:0") == self._TORCHS
        assert caplog.text.count("statistics without utilization, temperature and power") == 1

    def test_a_gpu_that_is_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A GPU that falls off the bus is an error, not a gap in the statistics."""
        nvml = FakeNVML({"GPU-1111": self._GPU}, {"nvmlDeviceGetTemperature": 15})
        with (
            self._managed(monkeypatch, nvml) as accelerator,
            pytest.raises(BackendError, match=r"nvmlDeviceGetTemperature.*status 15"),
        ):
            accelerator.get_device_stats("cuda:0")

    def test_on_rocm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On AMD's GPUs NVIDIA's library is not asked, be it installed or not."""
        monkeypatch.setattr(torch.version, "hip", "6.3")
        with self._managed(monkeypatch, FakeNVML({"GPU-1111": self._GPU})) as accelerator:
            assert accelerator.get_device_stats("cuda:0") == self._TORCHS

    def test_it_starts_again_after_teardown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The library is opened again for statistics after a teardown."""
        nvml = FakeNVML({"GPU-1111": self._GPU})
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        stats = DeviceStats()
        for _ in range(2):
            assert stats.read(torch.device("cuda:0"))["temperature_celsius"] == 61
            stats.close()
            assert nvml.users == 0


def test_asking_starts_no_cuda() -> None:
    """Making the accelerator and asking it for devices leaves CUDA unstarted: torch is not even asked."""
    code = (
        "import torch\n"
        "def fail(*args, **kwargs): raise AssertionError('CUDA was asked')\n"
        "torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = fail\n"
        "torch._C._cuda_getDeviceCount = fail\n"
        "from torch_hal_cuda import CUDAAccelerator\n"
        "accelerator = CUDAAccelerator()\n"
        "accelerator.get_parallel_devices(list(range(accelerator.auto_device_count())))\n"
        "print(accelerator.is_available(), accelerator.fork_unsafe_reason())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split()[-1] == "None"
