from __future__ import annotations

from typing import Any

import torch

from core.accelerators import Accelerator
from torch_hal_simx import detect


class SimxAccelerator(Accelerator):
    name = "simx"

    def is_available(self) -> bool:
        return detect.count() > 0

    def auto_device_count(self) -> int:
        return detect.count()

    def import_backend(self) -> None:
        import simx  # noqa: F401 - it gives torch the type

    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        return [torch.device("simx", index) for index in devices]

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        module = torch.get_device_module("simx")
        return {
            "memory_allocated_bytes": module.memory_allocated(device),
            "memory_allocated_peak_bytes": module.max_memory_allocated(device),
        }

    def fork_unsafe_reason(self) -> str | None:
        module = getattr(torch, "simx", None)
        return "it uses simulated cards" if module is not None and module.is_initialized() else None
