"""The result of a Module's ``configure_optimizers``, checked and brought into one form."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import attrs
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...errors import ConfigurationError, WrongTypeError, nearest, quoted
from ...hints.argument_checks import instead_of_class
from .lr_schedulers import INTERVALS, LRSchedulerConfig

VALID = (
    "an optimizer; a list of optimizers; [optimizer], [scheduler]; {'optimizer': ..., 'lr_scheduler': scheduler or "
    "{'scheduler': ..., 'interval': 'epoch' or 'step', 'frequency': 1, 'monitor': ...}}; a list of such mappings; or "
    "None"
)

NO_EFFECT_IN_MANUAL = ("interval", "frequency", "monitor", "strict", "reduce_on_plateau")
"""Options of a schedule that say how the Trainer steps it."""


@attrs.frozen
class Optimization:
    """Optimizers and schedules."""

    optimizers: tuple[Optimizer, ...] = ()
    schedules: tuple[LRSchedulerConfig, ...] = ()


def read_optimizers(given: Any, automatic: bool = True) -> Optimization:
    """Bring what ``configure_optimizers`` returned into one form.

    Args:
        given: What it returned.
        automatic: Whether the Trainer steps what it returned, and not the Module's own step.

    Raises:
        WrongTypeError: It is not an optimizer, or not a scheduler.
        ConfigurationError: A key or a value of a mapping is unknown or has no effect, or there are several optimizers
            that the Trainer would step.
    """
    optimizers: list[Any] = []
    schedules: list[LRSchedulerConfig] = []
    for optimizer, schedulers, monitor in _pairs(given):
        if not isinstance(optimizer, Optimizer):
            what = _shown(optimizer) if optimizer is given else f"{_shown(given)}, with {_shown(optimizer)}"
            raise WrongTypeError(
                f"configure_optimizers: returned {what} as an optimizer.{instead_of_class(optimizer)} Return {VALID}."
            )
        optimizers.append(optimizer)
        schedules += [_schedule(scheduler, monitor, automatic) for scheduler in schedulers]
    if automatic and len(optimizers) > 1:
        raise ConfigurationError(
            f"configure_optimizers: returned {len(optimizers)} optimizers, but automatic optimization steps only one. "
            "Set self.automatic_optimization = False in __init__ and step them in training_step: "
            "first, second = self.optimizers()."
        )
    known = {id(optimizer) for optimizer in optimizers}
    for schedule in schedules:
        own = getattr(schedule.scheduler, "optimizer", None)
        if isinstance(own, Optimizer) and id(own) not in known:
            raise ConfigurationError(
                f"configure_optimizers: the optimizer of {type(schedule.scheduler).__name__} is not among those "
                "returned. Create the scheduler with an optimizer that you return."
            )
    return Optimization(tuple(optimizers), tuple(schedules))


def _pairs(given: Any) -> list[tuple[Any, list[Any], str | None]]:
    """Each optimizer with its schedulers, and the metric of a mapping that names one."""
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [_from_mapping(given)]
    if not isinstance(given, tuple | list):
        return [(given, [], None)]
    if len(given) == 2 and isinstance(given[0], tuple | list):
        optimizers, schedulers = list(given[0]), given[1]
        listed = list(schedulers) if isinstance(schedulers, tuple | list) else [schedulers]
        if not optimizers:
            raise ConfigurationError(f"configure_optimizers: returned no optimizer. Return {VALID}.")
        return [*((optimizer, [], None) for optimizer in optimizers[:-1]), (optimizers[-1], listed, None)]
    if not given:
        raise ConfigurationError(f"configure_optimizers: returned no optimizer. Return {VALID}.")
    return [_from_mapping(part) if isinstance(part, Mapping) else (part, [], None) for part in given]


def _from_mapping(given: Mapping[str, Any]) -> tuple[Any, list[Any], str | None]:
    keys = ("optimizer", "lr_scheduler", "monitor")
    if not {"optimizer"} <= set(given) <= set(keys):
        meant = next((nearest(str(key), keys) for key in given if key not in keys), "")
        raise ConfigurationError(
            f"configure_optimizers: returned a mapping with the keys {quoted(map(str, given))}.{meant} Return {VALID}."
        )
    scheduler = given.get("lr_scheduler")
    schedulers = list(scheduler) if isinstance(scheduler, tuple | list) else [] if scheduler is None else [scheduler]
    return given["optimizer"], schedulers, given.get("monitor")


def _schedule(given: Any, monitor: str | None, automatic: bool) -> LRSchedulerConfig:
    options: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    for name in options:
        if name not in _FIELDS:
            raise ConfigurationError(
                f"configure_optimizers: lr_scheduler has the key {name!r}, which is unknown.{nearest(name, _FIELDS)} "
                f"Valid: {quoted(_FIELDS)}."
            )
    scheduler = options.get("scheduler")
    if not callable(getattr(scheduler, "step", None)) or isinstance(scheduler, type):
        raise WrongTypeError(
            f"configure_optimizers: {given!r} is not a scheduler.{instead_of_class(scheduler)} Return {VALID}."
        )
    if not automatic:
        _check_manual(options)
        return LRSchedulerConfig(**options)
    options.setdefault("reduce_on_plateau", isinstance(scheduler, ReduceLROnPlateau))
    if monitor is not None:
        options.setdefault("monitor", monitor)
    schedule = LRSchedulerConfig(**options)
    _check_automatic(schedule)
    return schedule


def _check_manual(options: Mapping[str, Any]) -> None:
    unused = [name for name in NO_EFFECT_IN_MANUAL if name in options]
    if unused:
        raise ConfigurationError(
            f"configure_optimizers: lr_scheduler has {quoted(unused)}, but with automatic_optimization=False the "
            "Trainer does not step schedulers. Remove them, and call self.lr_schedulers().step() where it is due."
        )


def _check_automatic(schedule: LRSchedulerConfig) -> None:
    name = type(schedule.scheduler).__name__
    if schedule.interval not in INTERVALS or type(schedule.frequency) is not int or schedule.frequency < 1:
        raise ConfigurationError(
            f"configure_optimizers: interval={schedule.interval!r}, frequency={schedule.frequency!r}. The "
            "interval must be 'epoch' or 'step', and the frequency an integer ≥ 1."
        )
    if schedule.monitor is not None and not isinstance(schedule.monitor, str):
        raise WrongTypeError(
            f"configure_optimizers: monitor={schedule.monitor!r}: must be the name of a logged metric, or None."
        )
    if schedule.reduce_on_plateau and schedule.monitor is None:
        raise ConfigurationError(
            f"configure_optimizers: the step of {name} takes a metric, and 'monitor' does not say which. Return "
            "{'optimizer': optimizer, 'lr_scheduler': {'scheduler': scheduler, 'monitor': 'val_loss'}}."
        )
    if schedule.monitor is not None and not schedule.reduce_on_plateau:
        raise ConfigurationError(
            f"configure_optimizers: monitor={schedule.monitor!r} has no effect, since the step of {name} is called "
            "without a metric. Remove it, or set 'reduce_on_plateau': True if the step takes the metric."
        )


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether the optimizer's ``step`` cannot be called without a closure, as with LBFGS."""
    return any(parameter.default is parameter.empty for parameter in _step_parameters(optimizer))


def takes_closure(optimizer: Optimizer) -> bool:
    """Whether the optimizer's ``step`` can be called with a closure."""
    return bool(_step_parameters(optimizer))


def _step_parameters(optimizer: Optimizer) -> list[inspect.Parameter]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    # The method of the class: schedulers and the optimizer's own hooks replace the one of the object.
    parameters = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
    return [parameter for parameter in parameters if parameter.kind not in variable]


_FIELDS = tuple(field.name for field in attrs.fields(LRSchedulerConfig))


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 80 and "\n" not in text else f"an object of type {type(given).__name__}"
