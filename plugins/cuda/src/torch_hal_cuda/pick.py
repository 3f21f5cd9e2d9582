"""Chooses GPUs that no other process uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from torch_hal.errors import BackendError, DeviceError
from torch_hal_cuda.management import Management, is_installed

__all__ = ["find_usable_cuda_devices"]

_SECONDS = 120.0
"""The time limit for trying all devices in seconds, including ``import torch``."""
_PROHIBITED = "its compute mode is prohibited"


def find_usable_cuda_devices(num_devices: int = -1) -> list[int]:
    """Return the indices of GPUs on which no other process computes and which a trial process could use.

    For ``devices=``: ``Trainer(accelerator="cuda", devices=find_usable_cuda_devices(2))``. GPUs that this process uses
    count as free. Needs NVIDIA GPUs and ``nvidia-ml-py`` (extra ``stats``). In a container, where the driver knows this
    process by another id, call it before CUDA is used.

    Args:
        num_devices: The number of GPUs; ``-1`` for all free ones.

    Raises:
        DeviceError: ``num_devices`` is invalid, or fewer GPUs are free; the message names the processes on each.
        BackendError: The GPUs cannot be queried or tried.
    """
    if isinstance(num_devices, bool) or not isinstance(num_devices, int) or (num_devices < 1 and num_devices != -1):
        raise DeviceError(f"num_devices={num_devices!r}: must be an integer >= 1, or -1 for all free GPUs.")
    if not is_installed():
        raise BackendError(
            "auto_select_gpus, find_usable_cuda_devices: nvidia-ml-py is not installed. "
            "Run: pip install 'torch-hal-cuda[stats]', or pass devices= by index."
        )
    faults = _faults(_tried())
    free = [index for index, fault in enumerate(faults) if fault is None]
    if len(free) < max(1, num_devices):
        faulty = "; ".join(f"{index}: {fault}" for index, fault in enumerate(faults) if fault is not None)
        raise DeviceError(
            f"num_devices={num_devices}: only {len(free)} of {len(faults)} GPU(s) are free "
            f"({faulty or 'no GPU found'}). Request fewer, or pass devices= by index."
        )
    return free if num_devices == -1 else free[:num_devices]


def _tried() -> list[dict[str, Any]]:
    """The result of :mod:`torch_hal_cuda.trial` for each device."""
    command = [sys.executable, "-m", "torch_hal_cuda.trial"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environ, check=True)
        outcomes: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"trying the GPUs took longer than {_SECONDS:g} s: a call of the driver hangs.") from error
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        raise BackendError(f"trying the GPUs failed: {reason.strip()[-500:]}") from error
    return outcomes


def _faults(outcomes: list[dict[str, Any]]) -> list[str | None]:
    """For each device why it cannot be used, or ``None``."""
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
        return "in use by " + ", ".join(_named(management, pid) for pid in others)
    # In exclusive mode the trial process fails on a GPU that this process uses.
    return None if os.getpid() in pids else error


def _named(management: Management, pid: int) -> str:
    name = management.ask("nvmlSystemGetProcessName", pid)  # unknown for a process in another container
    return f"process {pid}" if name is None else f"process {pid} ({name})"
