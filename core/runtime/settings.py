"""Arguments of :class:`core.Runtime` under Accelerate's names, read as those that torch-hal has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from ..data import DataSettings
from ..errors import ConfigurationError, WrongTypeError, quoted
from ..hints.argument_checks import instead_of_class
from ..plan import Plan
from ..precisions.base import Precision
from ..strategies.base import Strategy
from .gradient_state import GradientAccumulationPlugin

__all__ = [
    "check_loop",
    "check_rng_types",
    "read_accelerator",
    "read_accumulation",
    "read_data",
    "read_precision",
]

PRECISIONS = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
"""Accelerate's names of precisions, and torch-hal's."""


def read_accelerator(accelerator: Any, cpu: bool) -> Any:
    """``accelerator``, or ``"cpu"`` if ``cpu`` is set.

    Raises:
        WrongTypeError: ``cpu`` is not a bool.
        ConfigurationError: Both are given, and differ.
    """
    if not isinstance(cpu, bool):
        raise WrongTypeError(f"cpu={cpu!r}: must be True or False.")
    if cpu and accelerator not in ("auto", "cpu") and getattr(accelerator, "name", None) != "cpu":
        raise ConfigurationError(f"cpu=True and accelerator={accelerator!r}: contradict each other. Pass one of them.")
    return "cpu" if cpu and accelerator == "auto" else accelerator


def read_precision(precision: str | int | Precision, mixed_precision: str | None) -> str | int | Precision:
    """``precision``, or the one that ``mixed_precision`` names.

    Raises:
        ConfigurationError: ``mixed_precision`` is unknown, or both are given and differ.
    """
    if mixed_precision is None:
        return precision
    name = PRECISIONS.get(mixed_precision) if isinstance(mixed_precision, str) else None
    if name is None:
        raise ConfigurationError(
            f"mixed_precision={mixed_precision!r}: unknown. Valid: {quoted(PRECISIONS)}. Others are precision=..., as "
            "in precision='bf16-true'; all of them: torch-hal list --kind precision"
        )
    if precision not in ("auto", name):
        raise ConfigurationError(
            f"mixed_precision={mixed_precision!r} and precision={precision!r}: contradict each other. Pass one of them."
        )
    return name


def read_accumulation(steps: Any, plugin: Any) -> GradientAccumulationPlugin:
    """The settings of gradient accumulation.

    Args:
        steps: The number of micro-batches in a window, or the settings; an object of Accelerate's class will do.
        plugin: The settings; ``None`` for those in ``steps``.

    Raises:
        WrongTypeError: A value has the wrong type.
        ConfigurationError: Both are given, or a value is invalid.
    """
    if plugin is not None and steps != 1:
        raise ConfigurationError(
            f"gradient_accumulation_steps={steps!r} and gradient_accumulation_plugin={plugin!r}: both were given. Pass "
            "one of them."
        )
    given = steps if plugin is None else plugin
    if isinstance(given, GradientAccumulationPlugin):
        return given
    names = [field.name for field in attrs.fields(GradientAccumulationPlugin)]
    if not isinstance(given, type) and all(hasattr(given, name) for name in names):
        return GradientAccumulationPlugin(**{name: getattr(given, name) for name in names})
    if plugin is not None:
        raise WrongTypeError(
            f"gradient_accumulation_plugin={plugin!r}: must be a core.GradientAccumulationPlugin(num_steps=...)."
            f"{instead_of_class(plugin)}"
        )
    return GradientAccumulationPlugin(num_steps=steps)


def read_data(dataloader_config: Any, given: dict[str, Any]) -> DataSettings:
    """The settings of how data is read.

    Args:
        dataloader_config: A :class:`core.data.DataSettings` or an object with such attributes, such as Accelerate's
            ``DataLoaderConfiguration``; ``None`` for the plain arguments alone.
        given: The plain arguments, by name; ``None`` for those that were not given.

    Raises:
        WrongTypeError: A value has the wrong type.
        ConfigurationError: Settings were given in both ways.
    """
    plain = {name: value for name, value in given.items() if value is not None}
    if dataloader_config is None:
        return DataSettings(**plain)
    if plain:
        raise ConfigurationError(
            f"dataloader_config={dataloader_config!r} and {quoted(sorted(plain))}: both were given. Pass all settings "
            "in one of the two ways."
        )
    if isinstance(dataloader_config, DataSettings):
        return dataloader_config
    names = [field.name for field in attrs.fields(DataSettings)]
    missing = [name for name in names if not hasattr(dataloader_config, name)]
    if missing:
        raise WrongTypeError(
            f"dataloader_config={dataloader_config!r}: has no {quoted(missing)}. Pass a core.data.DataSettings."
        )
    return DataSettings(**{name: getattr(dataloader_config, name) for name in names})


def check_rng_types(rng_types: Sequence[str] | None) -> None:
    """Refuse generators that torch-hal does not make equal in all processes.

    Raises:
        ConfigurationError: There are some.
    """
    if rng_types is not None and list(rng_types) not in ([], ["generator"]):
        raise ConfigurationError(
            f"rng_types={rng_types!r}: the processes always draw the order of data alike, and other numbers by "
            "generators of their own. Pass ['generator'] or leave it out; to seed the generators, call "
            "core.seed_everything(seed)."
        )


def check_loop(plan: Plan, strategy: Strategy) -> None:
    """Check that ``strategy`` can serve a loop of the user's own.

    Raises:
        ConfigurationError: It cannot.
    """
    if not strategy.supports_custom_loop:
        raise ConfigurationError(
            f"strategy={plan.strategy.name!r}: it runs whole training steps only, so it cannot be used with a "
            "loop of your own. Use core.Trainer, or another strategy."
        )
    if type(strategy).setup is not Strategy.setup:
        raise ConfigurationError(
            f"strategy: {type(strategy).__name__} defines setup(trainer), which only a Trainer calls. "
            "Override setup_environment or setup_module instead, which a Runtime calls too."
        )
