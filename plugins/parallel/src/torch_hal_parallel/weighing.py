"""The check that a loss is a mean over items, since a pipeline takes the mean of its microbatches' losses.

For any other loss the results would be wrong without an error. So in some steps the loss is also computed for two
microbatches together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torch_hal import rank_zero_warn
from torch_hal.errors import ConfigurationError
from torch_hal.random import get_rng_state, set_rng_state
from torch_hal_parallel.unchanged import unchanged

if TYPE_CHECKING:
    from torch_hal_parallel.pipeline import LossOf, Pipeline
    from torch_hal_parallel.strategy import ModelParallelStrategy

__all__ = ["check_loss", "differ", "generators"]

ROUNDING = 1e-4
"""By how much losses in float32 differ at most through the order of additions, relative to their size."""

_MEAN = "A pipeline takes the mean of the losses of its microbatches"


def check_loss(strategy: ModelParallelStrategy, pipeline: Pipeline, loss_of: LossOf, called: str, owner: Any) -> None:
    """Compare the loss of two microbatches at once with the mean of theirs, if this is a step for it.

    The loss is computed a second time, without gradients. Random number generators and ``owner`` are restored.

    Args:
        strategy: Of the run.
        pipeline: With the outputs of this step; every process calls this.
        loss_of: As the step was given.
        called: The name of what the user wrote.
        owner: If it is a module, what it counts and collects stays as it is.

    Raises:
        ConfigurationError: The loss is a sum; in every process.
    """
    if not pipeline.compares:
        return
    found = _compared(strategy, pipeline, loss_of, owner) if pipeline.has_last else None
    pipeline.ends.clear()
    kind, text = pipeline.from_last(found) or ("", "")
    if kind == "sum":
        raise ConfigurationError(f"{called}: {text}")
    if kind:
        pipeline.stop_comparing()
        rank_zero_warn(f"{called}: {text}")


def _compared(
    strategy: ModelParallelStrategy, pipeline: Pipeline, loss_of: LossOf, owner: Any
) -> tuple[str, str] | None:
    """What is wrong with the loss, and in what words."""
    last = pipeline.microbatches - 1
    (output, one), (other_output, other) = pipeline.ends[0], pipeline.ends[last]
    before = generators(strategy)
    try:
        with torch.no_grad(), unchanged(owner if isinstance(owner, nn.Module) else None):
            both = loss_of(torch.cat([output, other_output]), 0, last)
        is_random = differ(before, generators(strategy))
    except Exception as error:  # noqa: BLE001  # any of the user's own code
        return "unknown", _unknown(f"raises {type(error).__name__} with two microbatches at once: {error!s:.200}")
    finally:
        set_rng_state(before, strategy.accelerator, strategy.root_device)
    if is_random:
        return "unknown", _unknown("draws random numbers after the call of the model")
    return _verdict(float(both), float(one), float(other), both.dtype, pipeline.microbatches)


def _verdict(both: float, one: float, other: float, dtype: torch.dtype, count: int) -> tuple[str, str] | None:
    rounding = max(ROUNDING, 8 * torch.finfo(dtype).eps) * (abs(one) + abs(other))
    mean = (one + other) / 2
    if not abs(both - mean) > rounding:  # also where one is not a number
        return None
    values = f"{both:.6g} for two microbatches at once, which have {one:.6g} and {other:.6g} alone"
    if abs(both - one - other) <= rounding:
        return "sum", (
            f"its loss is a sum over items: {values}. {_MEAN}, so a sum would be divided by microbatches={count}. Use "
            "reduction='mean', or divide by the number of items that it is called with."
        )
    return "weights", (
        f"its loss is {values}: their mean is {mean:.6g}. {_MEAN}, so the loss of a batch and its gradients are not "
        "those of one process. With ignore_index, a mask or weights of classes, items count more in some microbatches: "
        "divide the sum by a number that is equal for all, as the README of torch-hal-parallel shows. A loss that "
        "compares items with one another needs strategy='ddp' or 'fsdp'."
    )


def _unknown(why: str) -> str:
    return (
        f"it {why}, so its losses could not be compared. {_MEAN}: let it return a mean over items (reduction='mean'), "
        "in which all microbatches count equally."
    )


def generators(strategy: ModelParallelStrategy) -> dict[str, Any]:
    """The state of all generators of random numbers."""
    return get_rng_state(strategy.accelerator, strategy.root_device)


def differ(one: Any, other: Any) -> bool:
    """Whether such states differ."""
    if isinstance(one, Tensor):
        return not torch.equal(one, other)
    if isinstance(one, Mapping):
        return any(differ(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple):
        return any(differ(value, part) for value, part in zip(one, other, strict=True))
    return bool(one != other)
