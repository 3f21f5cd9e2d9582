"""Checking the process group backend before any process is started."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..errors import BackendError, WrongTypeError, quoted

__all__ = ["check_process_group_backend"]


def check_process_group_backend(backend: Any, device: torch.device) -> None:
    """Reject a backend that ``torch.distributed`` does not have here, or that does not support ``device``.

    Args:
        backend: A name; or ``"<device type>:<name>"`` for several device types, separated by commas.
        device: One of the run's devices.

    Raises:
        WrongTypeError: ``backend`` is not a string.
        BackendError: The backend is not available, or not for this type of device.
    """
    if not isinstance(backend, str):
        raise WrongTypeError(f"process_group_backend must be a name such as 'gloo'; got {backend!r}.")
    fault = _fault(backend.lower(), device.type)
    if fault:
        usable = [name for name in dist.Backend.backend_list if not _fault(name, device.type)]
        raise BackendError(
            f"process_group_backend={backend!r} cannot be used: {fault}. Valid for device type {device.type!r}: "
            f"{quoted(usable)}."
        )


def _fault(backend: str, device_type: str) -> str:
    by_type = {device_type: backend}
    if ":" in backend:
        by_type = {of: name for of, _, name in (pair.partition(":") for pair in backend.split(","))}
    for name in by_type.values():
        if name == dist.Backend.UNDEFINED or not dist.is_backend_available(name):
            return f"torch.distributed has no backend {name!r} here"
    if device_type not in by_type:
        return f"it names no backend for device type {device_type!r}"
    served = dist.Backend.backend_capability.get(backend, [device_type])  # torch checks no more of one with types
    return "" if device_type in served else f"it supports {quoted(served)}, not {device_type!r}"
