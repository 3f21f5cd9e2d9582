"""What a Module's ``configure_optimizers`` returned, in one form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from core.errors import ConfigurationError, WrongTypeError, quoted

__all__ = ["Optimization", "Schedule", "read_optimizers"]

INTERVALS = ("epoch", "step")

VALID = (
    "an optimizer; [optimizer], [scheduler]; or {'optimizer': ..., 'lr_scheduler': scheduler or {'scheduler': ..., "
    "'interval': 'epoch' or 'step', 'frequency': 1}}, where the scheduler's step takes no argument"
)


@attrs.frozen
class Schedule:
    """A learning rate scheduler, and how often it is stepped."""

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1


@attrs.frozen
class Optimization:
    """One optimizer and its schedules."""

    optimizer: Optimizer
    schedules: tuple[Schedule, ...] = ()

    def step_schedules(self, interval: str, count: int) -> None:
        """Step the schedulers of ``interval`` whose frequency divides ``count``, the number of intervals so far."""
        for schedule in self.schedules:
            if schedule.interval == interval and count % schedule.frequency == 0:
                schedule.scheduler.step()


def read_optimizers(given: Any) -> Optimization:
    """Bring what ``configure_optimizers`` returned into one form.

    Raises:
        WrongTypeError: It is not an optimizer, or not a scheduler.
        ConfigurationError: There is not exactly one optimizer, or a key or a value of a mapping is unknown.
    """
    if isinstance(given, Mapping):
        if not {"optimizer"} <= set(given) <= {"optimizer", "lr_scheduler"}:
            raise ConfigurationError(
                f"configure_optimizers: returned a mapping with the keys {quoted(map(str, given))}. Return {VALID}."
            )
        optimizer, schedulers = given["optimizer"], given.get("lr_scheduler", [])
    elif isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(part, tuple | list) for part in given):
        optimizer, schedulers = given
    else:
        optimizer, schedulers = given, []
    if isinstance(optimizer, tuple | list):
        if len(optimizer) != 1:
            raise ConfigurationError(f"configure_optimizers: returned {len(optimizer)} optimizers. Return {VALID}.")
        optimizer = optimizer[0]
    if not isinstance(optimizer, Optimizer):
        raise WrongTypeError(f"configure_optimizers: returned {given!r}. Return {VALID}.")
    if not isinstance(schedulers, tuple | list):
        schedulers = [schedulers]
    return Optimization(optimizer, tuple(_schedule(scheduler) for scheduler in schedulers))


def _schedule(given: Any) -> Schedule:
    is_described = isinstance(given, Mapping) and {"scheduler"} <= set(given) <= _FIELDS
    schedule = Schedule(**given) if is_described else Schedule(given)
    if isinstance(schedule.scheduler, ReduceLROnPlateau) or not callable(getattr(schedule.scheduler, "step", None)):
        raise WrongTypeError(f"configure_optimizers: {given!r} is not a supported scheduler. Return {VALID}.")
    if schedule.interval not in INTERVALS or type(schedule.frequency) is not int or schedule.frequency < 1:
        raise ConfigurationError(
            f"configure_optimizers: interval={schedule.interval!r}, frequency={schedule.frequency!r}. The "
            "interval must be 'epoch' or 'step', and the frequency an integer ≥ 1."
        )
    return schedule


_FIELDS = {"scheduler", "interval", "frequency"}
