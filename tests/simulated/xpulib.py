"""A stand-in for the library that a hypothetical XPU's vendor ships, with which an ``XPUAccelerator`` is written.

Its devices are the simulated ones of :mod:`simx`. What it was asked is recorded in ``calls``, for tests.
"""

from __future__ import annotations

import simx
import torch

__all__ = ["available_devices", "calls", "device", "is_available", "stats"]

calls: list[str] = []
"""Names of the functions called, in order."""


def available_devices() -> int:
    """How many devices there are."""
    calls.append("available_devices")
    return int(torch.get_device_module(simx.DEVICE_TYPE).device_count())


def is_available() -> bool:
    """Whether there is any device."""
    calls.append("is_available")
    return bool(torch.get_device_module(simx.DEVICE_TYPE).is_available())


def device(index: int) -> torch.device:
    """The device at ``index``."""
    calls.append("device")
    return torch.device(simx.DEVICE_TYPE, index)


def stats(device: str | torch.device) -> dict[str, int]:
    """Memory in use on ``device``."""
    calls.append("stats")
    return {"memory_allocated_bytes": torch.get_device_module(simx.DEVICE_TYPE).memory_allocated(torch.device(device))}
