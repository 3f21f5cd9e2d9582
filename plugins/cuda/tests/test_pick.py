"""Choosing GPUs that no one else uses; drivers and the trial's outcomes are simulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from torch_hal_cuda import CUDAAccelerator, detect, find_usable_cuda_devices, pick

from torch_hal import Trainer
from torch_hal.errors import BackendError, DeviceError

from .fake_pynvml import FakeNVML

Machine = Callable[..., FakeNVML]

_PROHIBITED, _EXCLUSIVE = FakeNVML.NVML_COMPUTEMODE_PROHIBITED, FakeNVML.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
_BUSY = "CUDA error: all CUDA-capable devices are busy or unavailable"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Make a machine of GPUs, each with the processes on it, its compute mode, and what trying it says."""

    def make(*gpus: dict[str, Any], errors: dict[str, int] | None = None) -> FakeNVML:
        nvml = FakeNVML({f"GPU-{index}{index}": gpu for index, gpu in enumerate(gpus)}, errors)
        outcomes = [{"uuid": f"{index}{index}", "error": gpu.get("error")} for index, gpu in enumerate(gpus)]
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(pick, "_tried", lambda: outcomes)
        monkeypatch.setattr(detect, "count", lambda: len(gpus))
        return nvml

    return make


def test_free_ones_are_chosen(machine: Machine) -> None:
    """Those without another process are chosen, in the order of their indices; -1 means all of them."""
    nvml = machine({"pids": [7]}, {}, {"pids": [8, 9]}, {}, {})
    assert find_usable_cuda_devices(2) == [1, 3]
    assert find_usable_cuda_devices(-1) == find_usable_cuda_devices() == [1, 3, 4]
    assert nvml.users == 0


def test_too_few_says_who_occupies_what(machine: Machine) -> None:
    """Where fewer are free, the error names each occupied GPU and the processes on it."""
    machine({"pids": [7, 404]}, {}, {"mode": _PROHIBITED}, {"mode": _EXCLUSIVE, "error": _BUSY})
    with pytest.raises(DeviceError) as caught:
        find_usable_cuda_devices(2)
    assert str(caught.value) == (
        "num_devices=2: only 1 of 4 GPU(s) are free (0: in use by process 7 (job-7), process 404; 2: its compute "
        f"mode is prohibited; 3: {_BUSY}). Request fewer, or pass devices= by index."
    )


def test_this_process_does_not_stand_in_its_own_way(machine: Machine) -> None:
    """What this process itself uses is free, also in exclusive mode, where the trial cannot have it."""
    machine({"pids": [os.getpid()], "mode": _EXCLUSIVE, "error": _BUSY}, {"pids": [os.getpid(), 7]})
    assert find_usable_cuda_devices() == [0]


def test_none_free(machine: Machine) -> None:
    """All that are free must be at least one."""
    machine({"pids": [7]})
    with pytest.raises(DeviceError, match=r"num_devices=-1: only 0 of 1 GPU\(s\) are free"):
        find_usable_cuda_devices(-1)


def test_the_trial_decides(machine: Machine) -> None:
    """A GPU that no one occupies but that cannot be used is not chosen."""
    machine({"error": "CUDA out of memory"}, {})
    assert find_usable_cuda_devices(1) == [1]


@pytest.mark.parametrize("count", [0, -2, True, 1.0, "2", None])
def test_bad_counts(machine: Machine, count: Any) -> None:
    """What is not a number of GPUs is refused."""
    machine({}, {})
    with pytest.raises(DeviceError, match=f"num_devices={count!r}"):
        find_usable_cuda_devices(count)


def test_without_the_package(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvidia-ml-py no one can say who occupies what: it is refused, naming what to install."""
    machine({})
    monkeypatch.setattr(pick, "is_installed", lambda: False)
    with pytest.raises(BackendError, match=r"torch-hal-cuda\[stats\]"):
        find_usable_cuda_devices()


def test_a_library_that_fails(machine: Machine) -> None:
    """A management library that fails is an error: a GPU is not taken for free because no one could tell."""
    nvml = machine({}, errors={"nvmlDeviceGetComputeRunningProcesses": 15})
    with pytest.raises(BackendError, match=r"nvmlDeviceGetComputeRunningProcesses.*status 15"):
        find_usable_cuda_devices()
    assert nvml.users == 0


def test_the_accelerator_picks(machine: Machine) -> None:
    """With ``auto_select_gpus`` a bare number means free devices; indices mean themselves; without, the first."""
    machine({"pids": [7]}, {}, {"pids": [8]}, {})
    picking = CUDAAccelerator(auto_select_gpus=True)
    assert picking.pick_devices(2) == [1, 3]
    assert CUDAAccelerator().pick_devices(2) == [0, 1]
    arguments: dict[str, Any] = {"enable_progress_bar": False, "strategy": "dp"}
    assert Trainer(accelerator=picking, devices=2, **arguments).runtime.plan.devices == ("cuda:1", "cuda:3")
    assert Trainer(accelerator=picking, devices=[0, 2], **arguments).runtime.plan.devices == ("cuda:0", "cuda:2")
    with pytest.raises(DeviceError, match="in use by process 7"):
        Trainer(accelerator=picking, devices=3, **arguments)
    arguments |= {"accelerator": "cuda", "auto_select_gpus": True}
    assert Trainer(devices=2, **arguments).runtime.plan.devices == ("cuda:1", "cuda:3")
    with pytest.raises(DeviceError, match="in use by process 7"):
        Trainer(devices=3, **arguments)


def test_the_trial_runs_in_a_separate_process() -> None:
    """Trying is left to another process, whose answer is read past whatever else it prints."""
    import torch

    outcomes = pick._tried()
    assert len(outcomes) == torch.cuda.device_count()
    assert all(set(outcome) == {"uuid", "error"} for outcome in outcomes)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (subprocess.TimeoutExpired("trial", 1), "took longer than 120 s: a call of the driver hangs"),
        (subprocess.CalledProcessError(-11, "trial", stderr="Fatal: segmentation fault\n"), "Fatal: segmentation"),
        (json.JSONDecodeError("no value", "", 0), "trying the GPUs failed: no value"),
    ],
)
def test_a_trial_that_dies(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    """A trial that hangs or crashes is an error that shows its last output."""

    def run(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(BackendError, match=said):
        pick._tried()
