"""A scheduler that steps when the optimizer does."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from torch.optim.lr_scheduler import LRScheduler

from ...strategies.base import Strategy
from ...strategies.wrapping.optimizer_wrapper import unwrap_optimizer
from ...strategies.wrapping.wrapper_class import joined_class
from ...utilities.torch_private import count_scheduler_call
from ..gradient_state import GradientState

__all__ = ["PreparedScheduler", "schedule_length", "warn_of_long_schedule"]

_OWN = ("step", "_core_scheduler", "_core_call")


class PreparedScheduler(LRScheduler):
    """The user's scheduler, whose ``step`` acts if the optimizer has stepped: once a step, on any number of processes.

    It acts in the last micro-batch of an accumulation, unless the optimizer's step was skipped. It is an
    instance of the user's class, and shares all attributes but ``step`` with the user's scheduler.

    Args:
        scheduler: The user's scheduler.
        state: Says whether this micro-batch synchronizes gradients.
        strategy: Says how many steps the optimizer's last call was.
    """

    _core_scheduler: LRScheduler
    _core_call: tuple[Any, ...]

    def __init_subclass__(cls) -> None:
        """Not passed on: the user's class, which may register its subclasses, comes next."""

    def __new__(cls, scheduler: LRScheduler, state: GradientState, strategy: Strategy) -> Self:
        """An instance of the class and of the user's class."""
        self: Self = object.__new__(joined_class(PreparedScheduler, type(scheduler), _OWN, "_core_scheduler"))
        object.__setattr__(self, "__dict__", scheduler.__dict__)
        object.__setattr__(self, "_core_scheduler", scheduler)
        object.__setattr__(self, "_core_call", (scheduler, state, strategy))
        object.__setattr__(self, "step", partial(_step, scheduler, state, strategy))
        return self

    def __init__(self, scheduler: LRScheduler, state: GradientState, strategy: Strategy) -> None:
        """Nothing: the user's scheduler was initialized."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        del protocol
        return PreparedScheduler, self._core_call


def _step(scheduler: Any, state: GradientState, strategy: Strategy, *args: Any, **kwargs: Any) -> None:
    if not state.sync_gradients:
        if state.adjust_scheduler:
            count_scheduler_call(scheduler)
        return
    for _ in range(strategy.steps_taken(unwrap_optimizer(scheduler.optimizer))):
        scheduler.step(*args, **kwargs)


def schedule_length(scheduler: Any) -> tuple[str, int] | None:
    """The number of steps that a scheduler was made for, and the argument that says it; ``None`` if it is unknown.

    Known are ``total_steps``, ``T_max`` and ``total_iters`` of torch's schedulers, and ``num_training_steps`` in the
    functions that transformers and diffusers make for ``LambdaLR``.
    """
    found = [(name, getattr(scheduler, name, None)) for name in ("total_steps", "T_max", "total_iters")]
    for function in getattr(scheduler, "lr_lambdas", ()):
        known = {**getattr(function, "keywords", {})}
        if inspect.isfunction(function):
            known |= inspect.getclosurevars(function).nonlocals
        found.append(("num_training_steps", known.get("num_training_steps")))
    return next(((name, value) for name, value in found if isinstance(value, int) and value > 0), None)


def warn_of_long_schedule(scheduler: Any, num_processes: int, share: float) -> None:
    """Warn if a run has taken fewer steps than ``scheduler`` was made for, as many as Accelerate's count explains.

    Args:
        scheduler: The user's scheduler.
        num_processes: As many times a step Accelerate steps it.
        share: How many steps of an epoch on one process are one on so many: fewer than ``num_processes`` where their
            last batches, or windows of batches, are not whole.
    """
    length, taken = schedule_length(scheduler), getattr(scheduler, "last_epoch", 0)
    if length is None or num_processes == 1 or not isinstance(taken, int) or taken < 1:
        return
    name, steps = length
    low = taken * (share if share > 1 else num_processes) - num_processes
    if taken < steps and low < steps < (taken + 1) * num_processes:
        warnings.warn(
            f"{type(scheduler).__name__}: {name}={steps}, but the run took {taken} steps: the schedule has not ended. "
            f"With {num_processes} processes Accelerate steps a scheduler {num_processes} times a step, torch-hal "
            f"steps it once. Pass {name}={taken}, the number of steps.",
            stacklevel=3,
        )
