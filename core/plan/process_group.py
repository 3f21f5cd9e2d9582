"""Which process group backends torch has: refused before processes are started, in which it would come out else."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from core.errors import BackendError, WrongTypeError, quoted

__all__ = ["check_process_group_backend"]


def check_process_group_backend(backend: Any, device: torch.device) -> None:
    """Refuse what ``torch.distributed`` has not, or has not for ``device``.

    Args:
        backend: One name; or ``"<device type>:<name>"`` for several types of device, separated by commas.
        device: One of the devices that the processes work on.

    Raises:
        WrongTypeError: It is no string.
        BackendError: As said.
    """
    if not isinstance(backend, str):
        raise WrongTypeError(f"process_group_backend={backend!r}: expected a name, such as 'gloo'.")
    fault = _fault(backend.lower(), device.type)
    if fault:
        usable = [name for name in dist.Backend.backend_list if not _fault(name, device.type)]
        raise BackendError(f"process_group_backend={backend!r}: {fault}. Valid for {device.type!r}: {quoted(usable)}.")


def _fault(backend: str, device_type: str) -> str:
    by_type = {device_type: backend}
    if ":" in backend:
        by_type = {of: name for of, _, name in (pair.partition(":") for pair in backend.split(","))}
    for name in by_type.values():
        if name == dist.Backend.UNDEFINED or not dist.is_backend_available(name):
            return f"torch.distributed has no {name!r} here"
    if device_type not in by_type:
        return f"it names none for device type {device_type!r}"
    served = dist.Backend.backend_capability.get(backend, [device_type])  # of one named by types, torch asks no more
    return "" if device_type in served else f"it serves {quoted(served)}, and not {device_type!r}"
