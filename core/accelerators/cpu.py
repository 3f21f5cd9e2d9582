"""The host's CPU as an accelerator."""

from __future__ import annotations

import os
import time
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from .base import Accelerator


class CPUAccelerator(Accelerator):
    """The host's CPU: any number of processes share it, so ``devices=k`` means k processes."""

    name = "cpu"
    unsupported = MappingProxyType({"memory_stats": "torch does not count the host's memory"})

    def is_available(self) -> bool:
        """Return ``True``."""
        return True

    def auto_device_count(self) -> int:
        """Return 1: torch itself uses all cores from one process."""
        return 1

    def device_limit(self) -> None:
        """Return ``None``: any number of processes can share the CPU."""
        return

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """Return the CPU once for each index."""
        return [torch.device("cpu") for _ in devices]

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Return CPU time and memory of this process, and memory and load of the host, as far as the host reports them.

        ``process_cpu_seconds``, ``process_memory_bytes`` (resident), ``host_memory_bytes`` (total),
        ``host_memory_available_bytes`` and ``host_load_processes`` (running or waiting, mean of one minute). Memory is
        read from ``/proc``; on systems that have none, by psutil if that is installed.
        """
        stats: dict[str, Any] = {"process_cpu_seconds": time.process_time()}
        if hasattr(os, "getloadavg"):
            stats["host_load_processes"] = os.getloadavg()[0]
        stats.update(_memory_of_process())
        stats.update(_memory_of_host())
        return stats


def _memory_of_process() -> dict[str, int]:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        psutil = _psutil()
        return {} if psutil is None else {"process_memory_bytes": psutil.Process().memory_info().rss}
    resident = int(statm.read_text().split()[1])
    return {"process_memory_bytes": resident * os.sysconf("SC_PAGE_SIZE")}


def _memory_of_host() -> dict[str, int]:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        if (psutil := _psutil()) is None:
            return {}
        memory = psutil.virtual_memory()
        return {"host_memory_bytes": memory.total, "host_memory_available_bytes": memory.available}
    lines = (line.partition(":") for line in meminfo.read_text().splitlines())
    kib = {key: int(value.split()[0]) for key, _, value in lines}
    names = {"host_memory_bytes": "MemTotal", "host_memory_available_bytes": "MemAvailable"}
    return {name: kib[key] * 1024 for name, key in names.items() if key in kib}


def _psutil() -> Any:
    try:
        return import_module("psutil")
    except ImportError:
        return None
