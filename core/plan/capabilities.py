"""Rejecting, before anything starts, what the accelerator declares as unsupported."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
import torch.distributed as dist

from ..accelerators.base import Accelerator
from ..errors import BackendError, ConfigurationError, WrongTypeError, quoted
from ..precisions.base import Precision

logger = logging.getLogger(__name__)


_COMPUTING = {torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16"}
"""The capability that computing in a dtype needs."""


def check_able(accelerator: Accelerator, precision: Precision, precision_name: str, world_size: int) -> None:
    """Reject a precision or a number of processes that needs a capability the accelerator does not have.

    Raises:
        ConfigurationError: A needed capability is unsupported; the message has the accelerator's reason.
    """
    unsupported = accelerator.unsupported
    dtypes = dict.fromkeys((precision.param_dtype, precision.compute_dtype))
    needed = [_COMPUTING[dtype] for dtype in dtypes if dtype in _COMPUTING]
    if precision.compute_dtype is not precision.param_dtype:
        needed.append("autocast")
    if precision.scales_loss:
        needed.append("loss_scaling")
    for capability in needed:
        if capability in unsupported:
            raise ConfigurationError(
                f"precision={precision_name!r} needs {capability}, which accelerator {accelerator.name!r} does not "
                f"support: {unsupported[capability]}. Set precision to one that does not need it, such as '32-true'."
            )
    if world_size > 1 and "collectives" in unsupported:
        raise ConfigurationError(
            f"devices and num_nodes give {world_size} processes, but accelerator {accelerator.name!r} does not support "
            f"collectives: {unsupported['collectives']}. Set devices=1 and num_nodes=1."
        )


def check_eager(accelerator: Accelerator, strategy_name: str) -> None:
    """Reject a strategy that runs operations one by one on an accelerator that only runs compiled programs.

    Raises:
        ConfigurationError: The accelerator does not support eager operations; the message has its reason.
    """
    if "eager" in accelerator.unsupported:
        raise ConfigurationError(
            f"strategy={strategy_name!r} runs operations one by one, which accelerator {accelerator.name!r} does not "
            f"support: {accelerator.unsupported['eager']}. Use a strategy that is made for {accelerator.name!r}."
        )


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warn_of_cores(processes: int, requested: str) -> None:
    """Warn if the processes of a machine outnumber the cores that this process may use.

    Args:
        processes: The number of processes that compute on the cores.
        requested: The argument that asks for them.
    """
    cores = usable_cores()
    if processes > cores:
        logger.warning(
            "%s: %d processes share %d core(s), so each is slower than one alone. Set devices=%d",
            requested,
            processes,
            cores,
            cores,
        )


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
