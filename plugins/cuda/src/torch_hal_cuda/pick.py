"""Choosing GPUs that nobody else uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from core.errors import BackendError, DeviceError
from torch_hal_cuda.management import Management, is_installed

__all__ = ["find_usable_cuda_devices"]

_SECONDS = 120.0
"""How long trying all devices may take, ``import torch`` among it."""
_PROHIBITED = "its compute mode is prohibited"


def find_usable_cuda_devices(num_devices: int = -1) -> list[int]:
    """The indices of GPUs that no other process computes on, and that a process of its own has just used.

    For ``devices=``: ``Trainer(accelerator="cuda", devices=find_usable_cuda_devices(2))``. What this process itself
    uses counts as free. Needs NVIDIA GPUs and ``nvidia-ml-py`` (extra ``stats``). In a container this process goes by
    another number than the driver's: call it before CUDA is used.

    Args:
        num_devices: How many; ``-1`` for all that are free.

    Raises:
        DeviceError: ``num_devices`` is no such number, or fewer are free; says who occupies which.
        BackendError: It cannot be found out here.
    """
    if isinstance(num_devices, bool) or not isinstance(num_devices, int) or (num_devices < 1 and num_devices != -1):
        raise DeviceError(f"num_devices={num_devices!r}: not a number of GPUs. Valid: 1 or more, or -1 for all free.")
    if not is_installed():
        raise BackendError(
            "auto_select_gpus, find_usable_cuda_devices: who occupies a GPU is asked of nvidia-ml-py, which is not "
            "installed. Valid: pip install 'torch-hal-cuda[stats]', or devices= by index."
        )
    faults = _faults(_tried())
    free = [index for index, fault in enumerate(faults) if fault is None]
    if len(free) < max(1, num_devices):
        said = "; ".join(f"{index}: {fault}" for index, fault in enumerate(faults) if fault is not None)
        raise DeviceError(
            f"num_devices={num_devices}: of {len(faults)} GPU(s), {len(free)} can be used now "
            f"({said or 'no GPU is there'}). Valid: up to {len(free)}, or devices= by index."
        )
    return free if num_devices == -1 else free[:num_devices]


def _tried() -> list[dict[str, Any]]:
    """For each device what :mod:`torch_hal_cuda.trial` found."""
    command = [sys.executable, "-m", "torch_hal_cuda.trial"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environ, check=True)
        outcomes: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"trying the GPUs took longer than {_SECONDS:g} s: a driver's call hangs.") from error
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise BackendError(f"the GPUs cannot be tried: {said.strip()[-500:]}") from error
    return outcomes


def _faults(outcomes: list[dict[str, Any]]) -> list[str | None]:
    """For each device why it is not to be used, or ``None``."""
    if all(outcome["uuid"] is None for outcome in outcomes):
        return [outcome["error"] for outcome in outcomes]
    management = Management()
    try:
        return [_fault(management, **outcome) for outcome in outcomes]
    finally:
        management.close()


def _fault(management: Management, uuid: str | None, error: str | None) -> str | None:
    if uuid is None:
        return error
    handle = management.handle(uuid)
    if management.ask("nvmlDeviceGetComputeMode", handle) == management.nvml.NVML_COMPUTEMODE_PROHIBITED:
        return _PROHIBITED
    pids = {process.pid for process in management.ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()}
    others = sorted(pids - {os.getpid()})
    if others:
        return "occupied by " + ", ".join(_named(management, pid) for pid in others)
    # In exclusive mode nobody can use what this process does, not even the trial.
    return None if os.getpid() in pids else error


def _named(management: Management, pid: int) -> str:
    name = management.ask("nvmlSystemGetProcessName", pid)  # not told of another container's
    return f"process {pid}" if name is None else f"process {pid} ({name})"
