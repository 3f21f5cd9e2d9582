"""The GPU of Apple silicon, which torch calls ``mps``."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import Any

import torch

from core.accelerators import Accelerator
from torch_hal_mps import detect

__all__ = ["MPSAccelerator"]


class MPSAccelerator(Accelerator):
    """The GPU of Apple silicon; a Mac has one, which shares its memory with the host."""

    name = "mps"
    lacks = MappingProxyType(
        {
            "float64": "Metal has no double precision",
            "collectives": "a Mac has one GPU, and torch no process group whose collectives run on Metal",
        }
    )

    def is_available(self) -> bool:
        """Whether this is a Mac that torch can compute on, and torch is built with Metal."""
        return self.auto_device_count() > 0

    def auto_device_count(self) -> int:
        """One, or none."""
        return detect.count() if torch.backends.mps.is_built() else 0

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """The GPU, once for each index: there is one."""
        return [torch.device("mps", index) for index in devices]

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """The memory that GPU and host share.

        ``memory_allocated_bytes`` (by tensors), ``memory_reserved_bytes`` (by Metal for this process, what is cached
        included), ``memory_recommended_bytes`` (what Metal advises a process to stay below) and ``host_memory_bytes``
        (all there is).
        """
        del device
        return {
            "memory_allocated_bytes": torch.mps.current_allocated_memory(),
            "memory_reserved_bytes": torch.mps.driver_allocated_memory(),
            "memory_recommended_bytes": torch.mps.recommended_max_memory(),
            "host_memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        }

    def fork_unsafe_reason(self) -> str:
        """That Metal is lost to a forked process; torch does not tell whether this one uses it already."""
        return "Metal cannot be used in a process that was forked from one that uses it"
