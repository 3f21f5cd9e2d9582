"""The GPU of Apple silicon, torch's device type ``mps``."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import Any

import torch

from torch_hal.accelerators import Accelerator
from torch_hal_mps import detect

__all__ = ["MPSAccelerator"]


class MPSAccelerator(Accelerator):
    """The GPU of Apple silicon; a Mac has one, which shares its memory with the host."""

    name = "mps"
    out_of_memory_texts = ("invalid buffer size",)
    unsupported = MappingProxyType(
        {
            "float64": "Metal has no double precision",
            "collectives": "a Mac has one GPU, and torch has no process group with collectives on Metal",
        }
    )

    def is_available(self) -> bool:
        """Return whether torch can use this Mac's GPU and is built with Metal."""
        return self.auto_device_count() > 0

    def auto_device_count(self) -> int:
        """Return 1, or 0 without a usable GPU."""
        return detect.count() if torch.backends.mps.is_built() else 0

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """Return the GPU at each index; there is only one."""
        return [torch.device("mps", index) for index in devices]

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Return the state of the memory that GPU and host share.

        ``memory_allocated_bytes`` (by tensors), ``memory_reserved_bytes`` (by Metal for this process, including its
        cache), ``memory_recommended_bytes`` (the limit that Metal recommends for a process) and ``host_memory_bytes``
        (total).
        """
        del device
        return {
            "memory_allocated_bytes": torch.mps.current_allocated_memory(),
            "memory_reserved_bytes": torch.mps.driver_allocated_memory(),
            "memory_recommended_bytes": torch.mps.recommended_max_memory(),
            "host_memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        }

    def fork_unsafe_reason(self) -> str:
        """Return that Metal cannot be used after a fork; torch does not report whether this process uses it already."""
        return "Metal cannot be used in a process forked from one that uses it"
