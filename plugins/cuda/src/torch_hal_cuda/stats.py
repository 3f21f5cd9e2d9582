"""The state of a GPU: its memory according to torch, and the values of the management library."""

from __future__ import annotations

import logging
from typing import Any

import torch

from torch_hal.accelerators import memory_stats
from torch_hal.errors import BackendError
from torch_hal_cuda.management import Management, is_installed, uuid_of

__all__ = ["DeviceStats"]

_log = logging.getLogger(__name__)


class DeviceStats:
    """Reads statistics; opens the management library on first use."""

    def __init__(self) -> None:
        self._management: Management | None = None
        self._has_tried = False

    def read(self, device: torch.device) -> dict[str, Any]:
        """See :meth:`torch_hal_cuda.CUDAAccelerator.get_device_stats`.

        Raises:
            BackendError: The management library fails after it worked before.
        """
        stats = memory_stats(device)
        management = self._opened()
        return stats if management is None else {**stats, **_managed(management, device)}

    def close(self) -> None:
        """Close the management library."""
        if self._management is not None:
            self._management.close()
        self._management, self._has_tried = None, False

    def _opened(self) -> Management | None:
        if not self._has_tried:
            self._has_tried = True
            if torch.version.hip is None and is_installed():
                try:
                    self._management = Management()
                except BackendError as error:
                    _log.warning("statistics without utilization, temperature and power: %s", error)
        return self._management


def _managed(management: Management, device: torch.device) -> dict[str, Any]:
    handle = management.handle(uuid_of(device))
    rates = management.ask("nvmlDeviceGetUtilizationRates", handle)
    memory = management.ask("nvmlDeviceGetMemoryInfo", handle)
    celsius = management.ask("nvmlDeviceGetTemperature", handle, management.nvml.NVML_TEMPERATURE_GPU)
    milliwatts = management.ask("nvmlDeviceGetPowerUsage", handle)
    stats = {
        "utilization_percent": None if rates is None else rates.gpu,
        "memory_used_bytes": None if memory is None else memory.used,
        "temperature_celsius": celsius,
        "power_watts": None if milliwatts is None else milliwatts / 1000,
    }
    return {name: value for name, value in stats.items() if value is not None}
