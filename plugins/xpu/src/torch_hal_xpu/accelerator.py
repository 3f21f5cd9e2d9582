"""Intel GPUs, torch's device type ``xpu``."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

import torch

from torch_hal.accelerators import Accelerator
from torch_hal.errors import BackendError
from torch_hal_xpu import detect, level_zero

__all__ = ["XPUAccelerator"]

_log = logging.getLogger(__name__)


class XPUAccelerator(Accelerator):
    """Intel GPUs of torch's device type ``xpu``; one process uses one of them.

    Counting GPUs initializes none in torch, but the driver; so a process that has counted them cannot be forked.
    """

    out_of_memory_texts = ("OUT_OF_DEVICE_MEMORY", "OUT_OF_HOST_MEMORY", "ERROR_OUT_OF_RESOURCES")
    device_family = "XPU"
    name = "xpu"

    def is_available(self) -> bool:
        """Return whether this process can use a GPU; if counting fails, log the reason and return ``False``."""
        try:
            return self._detected > 0
        except (RuntimeError, OSError) as error:
            _log.warning("Intel GPUs cannot be used: %s", error)
            return False

    def auto_device_count(self) -> int:
        """Return the number of GPUs that this process can use, as ``ZE_AFFINITY_MASK`` says.

        Raises:
            BackendError: Counting failed.
        """
        try:
            return self._detected
        except (RuntimeError, OSError) as error:
            raise BackendError(f"accelerator {self.name!r}: counting GPUs failed: {error}") from error

    @cached_property
    def _detected(self) -> int:
        return detect.count()

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        """Return the GPUs at these indices, among those that this process sees."""
        return [torch.device("xpu", index) for index in devices]

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        """Return the memory of ``device``, which must be in use.

        ``memory_allocated_bytes`` (by tensors), ``memory_allocated_peak_bytes``, ``memory_reserved_bytes`` (by torch),
        ``memory_free_bytes`` and ``memory_total_bytes``. The last two are left out where the driver does not report
        them, as for some integrated GPUs.
        """
        stats = {
            "memory_allocated_bytes": torch.xpu.memory_allocated(device),
            "memory_allocated_peak_bytes": torch.xpu.max_memory_allocated(device),
            "memory_reserved_bytes": torch.xpu.memory_reserved(device),
        }
        try:
            free, total = torch.xpu.mem_get_info(device)
        except RuntimeError as error:
            _log.debug("%s does not report its memory: %s", device, error)
            return stats
        return {**stats, "memory_free_bytes": free, "memory_total_bytes": total}

    def fork_unsafe_reason(self) -> str | None:
        """Return that this process uses a GPU or has initialized the driver, if so: a forked process cannot use it."""
        if torch.xpu.is_initialized():  # type: ignore[no-untyped-call]
            return "torch.xpu is already initialized"
        return "Intel's driver is already initialized" if level_zero.is_initialized() else None
