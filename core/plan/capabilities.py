"""Rejecting, before anything starts, what the accelerator declares as unsupported."""

from __future__ import annotations

import logging
import os

import torch

from ..accelerators.base import Accelerator
from ..errors import ConfigurationError
from ..precisions.base import Precision

__all__ = ["check_able", "check_eager", "usable_cores", "warn_of_cores"]

logger = logging.getLogger(__name__)

_COMPUTING = {torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16"}
"""The capability that computing in a dtype needs."""


def check_able(accelerator: Accelerator, precision: Precision, precision_name: str, world_size: int) -> None:
    """Reject a precision or a number of processes that needs a capability the accelerator does not have.

    Raises:
        ConfigurationError: A needed capability is unsupported; the message has the accelerator's reason.
    """
    unsupported = accelerator.unsupported
    for capability in _needed_by(precision):
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


def _needed_by(precision: Precision) -> list[str]:
    dtypes = dict.fromkeys((precision.param_dtype, precision.compute_dtype))
    needed = [_COMPUTING[dtype] for dtype in dtypes if dtype in _COMPUTING]
    if precision.compute_dtype is not precision.param_dtype:
        needed.append("autocast")
    if precision.scales_loss:
        needed.append("loss_scaling")
    return needed
