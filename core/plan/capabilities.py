"""Refusing, before anything starts, what the accelerator says that it lacks."""

from __future__ import annotations

import torch

from core.accelerators.base import Accelerator
from core.errors import ConfigurationError
from core.precisions.base import Precision

__all__ = ["check_able", "check_eager"]

_COMPUTING = {torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16"}
"""The capability that computing in a dtype needs."""


def check_able(accelerator: Accelerator, precision: Precision, precision_name: str, world_size: int) -> None:
    """Refuse a precision, or a number of processes, that the accelerator lacks what it needs for.

    Raises:
        ConfigurationError: As said, with the accelerator's own reason.
    """
    lacks = accelerator.lacks
    for capability in _needed_by(precision):
        if capability in lacks:
            raise ConfigurationError(
                f"precision={precision_name!r} needs {capability}, which accelerator {accelerator.name!r} lacks: "
                f"{lacks[capability]}. Valid: a precision without it."
            )
    if world_size > 1 and "collectives" in lacks:
        raise ConfigurationError(
            f"devices, num_nodes: they give {world_size} processes, but accelerator {accelerator.name!r} lacks "
            f"collectives: {lacks['collectives']}. Valid: one process."
        )


def check_eager(accelerator: Accelerator, strategy_name: str) -> None:
    """Refuse a strategy that is not for this accelerator, where the accelerator runs no single operations.

    Raises:
        ConfigurationError: As said, with the accelerator's own reason.
    """
    if "eager" in accelerator.lacks:
        raise ConfigurationError(
            f"strategy={strategy_name!r} runs single operations, which accelerator {accelerator.name!r} lacks: "
            f"{accelerator.lacks['eager']}. Valid: a strategy that serves {accelerator.name!r} by name."
        )


def _needed_by(precision: Precision) -> list[str]:
    dtypes = dict.fromkeys((precision.param_dtype, precision.compute_dtype))
    needed = [_COMPUTING[dtype] for dtype in dtypes if dtype in _COMPUTING]
    if precision.compute_dtype is not precision.param_dtype:
        needed.append("autocast")
    if precision.scales_loss:
        needed.append("loss_scaling")
    return needed
