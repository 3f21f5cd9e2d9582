"""Arguments of :class:`core.Runtime` under Accelerate's names, read as those that torch-hal has."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import attrs

from ..data import DataSettings
from ..errors import ConfigurationError, WrongTypeError, quoted
from ..hints.argument_checks import check_flags, instead_of_class, is_list
from ..plan import Plan
from ..precisions.base import Precision
from ..registration import PrecisionRegistry, StrategyRegistry
from ..strategies.base import Strategy
from .gradient_state import GradientAccumulationPlugin

PRECISIONS = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed", "fp8": "fp8-mixed"}
"""Accelerate's names of precisions, and torch-hal's."""

RECIPES = ("AORecipeKwargs", "FP8RecipeKwargs", "MSAMPRecipeKwargs", "TERecipeKwargs")
"""Accelerate's classes of settings for ``"fp8"``."""


def read_accelerator(accelerator: Any, cpu: bool) -> Any:
    """``accelerator``, or ``"cpu"`` if ``cpu`` is set.

    Raises:
        WrongTypeError: ``cpu`` is not a bool.
        ConfigurationError: Both are given, and differ.
    """
    check_flags(cpu=cpu)
    if cpu and accelerator not in ("auto", "cpu") and getattr(accelerator, "name", None) != "cpu":
        raise ConfigurationError(f"cpu=True and accelerator={accelerator!r}: contradict each other. Pass one of them.")
    return "cpu" if cpu and accelerator == "auto" else accelerator


def read_strategy(strategy: Any, deepspeed_plugin: Any, fsdp_plugin: Any = None, parallelism_config: Any = None) -> Any:
    """``strategy``, or the one that objects of Accelerate's settings ask for.

    Raises:
        ConfigurationError: Several contradict each other, or a setting has no counterpart here.
        UnknownNameError: The plugin is not installed.
    """
    engines = {"deepspeed_plugin": deepspeed_plugin, "fsdp_plugin": fsdp_plugin}
    engines = {name: value for name, value in engines.items() if value is not None}
    sizes = _sizes(parallelism_config)
    others = {**engines, **({} if sizes is None else {"parallelism_config": parallelism_config})}
    if others and strategy != "auto":
        name, value = next(iter(others.items()))
        raise ConfigurationError(f"{name}={value!r:.100} and strategy={strategy!r}: both were given. Pass one of them.")
    if len(engines) > 1 or (sizes is not None and "deepspeed_plugin" in engines):
        raise ConfigurationError(f"{quoted(others)}: were given together. Pass one of them.")
    if sizes is not None:
        return _of_sizes(sizes, fsdp_plugin)
    for name, value in engines.items():
        return StrategyRegistry[name.removesuffix("_plugin")]["strategy"].of_script(value)
    return strategy


_SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")
"""Attributes of Accelerate's ``ParallelismConfig``: the processes of each dimension."""


def _sizes(config: Any) -> dict[str, int] | None:
    """The sizes of an object of Accelerate's ``ParallelismConfig``; ``None`` without one."""
    if config is None:
        return None
    missing = [name for name in _SIZES if not isinstance(getattr(config, name, None), int)]
    if missing:
        raise WrongTypeError(
            f"parallelism_config={config!r:.100}: has no number {quoted(missing)}. Pass strategy='fsdp', "
            f"'tensor_parallel' or 'context_parallel', or an object of Accelerate's class.{instead_of_class(config)}"
        )
    if getattr(config, "sp_size", 1) != 1:
        raise ConfigurationError(
            f"parallelism_config: sp_size={config.sp_size!r}: torch-hal has no such strategy. Use cp_size, or "
            "strategy='context_parallel', which divides sequences."
        )
    for name, value in getattr(config, "__dict__", {}).items():
        if value is not None and name not in (*_SIZES, "sp_size") and not name.startswith("_"):
            _check_dimension(name, value)
    return {name: getattr(config, name) for name in _SIZES}


_DIMENSIONS: dict[str, Any] = {
    "cp_backend": "torch",
    "sp_backend": "deepspeed",  # of Accelerate's objects, whose sp_size is 1
    "cp_handler": {"cp_comm_strategy": "allgather"},
    "tp_handler": {"enable_async_tp": False},
}
"""By other attributes of that class: the value, or the attributes of an object, with which a run is as it is here."""


def _check_dimension(name: str, value: Any) -> None:
    expected = _DIMENSIONS.get(name)
    if isinstance(expected, dict):
        for field, given in getattr(value, "__dict__", {}).items():
            if given != expected.get(field):
                raise ConfigurationError(
                    f"parallelism_config: {name}: {field}={given!r:.100}: has no counterpart here. Leave it out."
                )
    elif value != expected:
        raise ConfigurationError(
            f"parallelism_config: {name}={value!r:.100}: has no counterpart here. Leave it out, or pass strategy= with "
            "an object of the strategy's class."
        )


def _of_sizes(sizes: dict[str, int], fsdp_plugin: Any) -> Any:
    """The strategy that divides the processes in this way."""
    replicas, shards, tensor, context = sizes.values()
    shown = ", ".join(f"{name}={size}" for name, size in sizes.items() if size != 1)
    if shards != 1 or fsdp_plugin is not None:
        if context != 1 or (replicas != 1 and tensor != 1):
            raise ConfigurationError(
                f"parallelism_config: {shown}: no strategy of torch-hal combines these. Valid: dp_shard_size with "
                "dp_replicate_size or with tp_size; dp_replicate_size with tp_size and cp_size."
            )
        fsdp = StrategyRegistry["fsdp"]["strategy"]
        return fsdp.of_script(fsdp_plugin, replicas=replicas, tensor_parallel_size=tensor)
    if tensor != 1 or context != 1:
        name = "tensor_parallel" if tensor != 1 else "context_parallel"
        return StrategyRegistry[name]["strategy"](data=replicas, tensor=tensor, context=context)
    return "ddp" if replicas != 1 else "auto"


def check_parallelism(config: Any, world_size: int) -> None:
    """Check that the run has as many processes as the sizes of Accelerate's ``ParallelismConfig`` say.

    Raises:
        ConfigurationError: It has another number.
    """
    sizes = _sizes(config)
    if sizes is not None and prod(sizes.values()) != world_size:
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise ConfigurationError(
            f"parallelism_config: {shown} are for {prod(sizes.values())} process(es), and this run has {world_size}. "
            "Set devices= and num_nodes=, or other sizes."
        )


def check_compilation(dynamo_plugin: Any, dynamo_backend: Any = None) -> None:
    """Check that an object of Accelerate's ``TorchDynamoPlugin``, or its backend alone, compiles nothing.

    Raises:
        ConfigurationError: It names a backend.
    """
    given = {"dynamo_plugin": dynamo_plugin, "dynamo_backend": dynamo_backend}
    for argument, value in given.items():
        backend = getattr(value, "backend", None) if argument == "dynamo_plugin" else value
        name = str(getattr(backend, "value", backend))
        if value is not None and name.upper() != "NO":
            raise ConfigurationError(
                f"{argument}={value!r:.100}: torch-hal compiles no model. Call torch.compile(model, backend="
                f"{name.lower()!r}) before prepare, and leave it out."
            )


def steps_of_plugin(deepspeed_plugin: Any, given: int | GradientAccumulationPlugin) -> int | GradientAccumulationPlugin:
    """The micro-batches for each step that such an object names; ``given`` by default.

    Raises:
        ConfigurationError: The Runtime was given another number.
    """
    steps = getattr(deepspeed_plugin, "gradient_accumulation_steps", None)
    if steps in (None, "auto", 1):
        return given
    if given not in (1, steps):
        raise ConfigurationError(
            f"gradient_accumulation_steps={given!r} contradicts {steps!r} in deepspeed_plugin. Set one of them."
        )
    named: int = steps
    return named


def read_precision(
    precision: str | int | Precision, mixed_precision: str | None, fp16: bool | None, handlers: Any = None
) -> str | int | Precision:
    """``precision``, or the one that ``mixed_precision`` names; ``fp16`` is that for two of its values.

    Args:
        precision: As the Runtime was given; so are the next ones.
        mixed_precision: Accelerate's name.
        fp16: Whether it is ``"fp16"`` or ``"no"``.
        handlers: What ``"fp8"`` reads its settings from, if an object of one of :data:`RECIPES` is among them.

    Raises:
        WrongTypeError: ``fp16`` is not a bool.
        ConfigurationError: ``mixed_precision`` is unknown, two of them are given and differ, or settings for ``"fp8"``
            cannot be used.
        UnknownNameError: Settings for ``"fp8"`` are given, and the plugin is not installed.
    """
    read = _named_precision(precision, mixed_precision, fp16)
    recipes = [each for each in handlers if type(each).__name__ in RECIPES] if is_list(handlers) else []
    if not recipes:
        return read
    names = quoted(type(each).__name__ for each in recipes)
    if len(recipes) > 1:
        raise ConfigurationError(f"kwargs_handlers: has several recipes, {names}. Pass one.")
    if read != PRECISIONS["fp8"]:
        raise ConfigurationError(f"kwargs_handlers: {names} is for mixed_precision='fp8'. Set that, or leave it out.")
    made: Precision = PrecisionRegistry[PRECISIONS["fp8"]]["precision"].of_script(recipes[0])
    return made


def _named_precision(
    precision: str | int | Precision, mixed_precision: str | None, fp16: bool | None
) -> str | int | Precision:
    if fp16 is not None:
        check_flags(fp16=fp16)
        meant = "fp16" if fp16 else "no"
        if mixed_precision not in (None, meant) or precision not in ("auto", PRECISIONS[meant]):
            other = f"precision={precision!r}" if mixed_precision is None else f"mixed_precision={mixed_precision!r}"
            raise ConfigurationError(f"fp16={fp16} and {other}: contradict each other. Pass one of them.")
        return PRECISIONS[meant]
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


def read_rng_types(rng_types: Sequence[Any] | None, device_type: str) -> frozenset[str]:
    """The generators to make equal in all processes before each pass; those of samplers always are.

    Args:
        rng_types: Their names, or objects of Accelerate's ``RNGType``.
        device_type: Of the run's devices.

    Raises:
        ConfigurationError: There is no such generator in this run.
    """
    names = [getattr(each, "value", each) for each in rng_types or ()]
    valid = dict.fromkeys(("torch", "generator", *(() if device_type == "cpu" else (device_type,))))
    if unknown := [name for name in names if name not in valid]:
        raise ConfigurationError(
            f"rng_types={names!r}: this run has no generator {quoted(unknown)}; its devices are of type "
            f"{device_type!r}. Valid: {quoted(valid)}."
        )
    return frozenset(names) - {"generator"}


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
