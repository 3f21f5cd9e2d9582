"""The Plan for Accelerate: from arguments, torch-hal's environment variables, and those of ``accelerate launch``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch_hal.errors import ConfigurationError
from torch_hal.plan import Plan, Request, resolve
from torch_hal.strategies import DDPStrategy, SingleDeviceStrategy, Strategy

__all__ = ["MIXED_PRECISION", "check_engines", "make_plan", "mixed_precision_of"]

MIXED_PRECISION = {"no": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
"""Accelerate's names of precisions, and torch-hal's."""
logger = logging.getLogger(__name__)
ENGINES = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
}
"""Variables by which ``accelerate launch`` asks for an engine of its own."""


def make_plan(**arguments: Any) -> Plan:
    """Resolve ``arguments``. What they leave open comes from ``accelerate launch``, then from torch-hal's variables.

    Raises:
        ConfigurationError: Arguments and variables contradict each other, or Accelerate cannot run what they ask for.
        CoreError: Something cannot be resolved here.
    """
    requested = Request.read()
    environ = requested.environ
    given = {name: value for name, value in arguments.items() if value is not None}
    _read_launched(given, requested)
    plan = resolve(Request.read(environ=environ, **given))
    if _is_launched_alone(plan, environ):
        plan = _alone(plan, given, environ)
    reason = why_not(plan)
    if reason is not None:
        raise ConfigurationError(
            f"strategy={plan.strategy.name!r} cannot run under Accelerate: {reason}. Use strategy='ddp', or "
            "core.Runtime, which has Accelerate's methods and runs every strategy."
        )
    mixed_precision_of(plan)
    return plan


def mixed_precision_of(plan: Plan) -> str:
    """Accelerate's name of the planned precision.

    Raises:
        ConfigurationError: Accelerate has no such precision.
    """
    for name, ours in MIXED_PRECISION.items():
        if plan.precision.name == ours:
            return name
    raise ConfigurationError(
        f"precision={plan.precision.name!r}: Accelerate has '32-true', 'bf16-mixed' and '16-mixed' only. Convert the "
        "model yourself, or use core.Runtime."
    )


def why_not(plan: Plan) -> str | None:
    """Why Accelerate cannot run the planned strategy; ``None`` if it can."""
    strategy: Strategy = plan.parts["strategy"]
    if type(strategy) not in (DDPStrategy, SingleDeviceStrategy):
        return "Accelerate wraps models in DistributedDataParallel itself, or divides them by its own fsdp_plugin"
    if isinstance(strategy, DDPStrategy):
        options = [*strategy.ddp_kwargs, *(["communication_hook"] if strategy.communication_hook else [])]
        if options:
            return (
                f"{', '.join(options)} would have no effect; pass Accelerate's DistributedDataParallelKwargs in "
                "kwargs_handlers"
            )
    if plan.launcher not in (None, "script"):
        return f"it calls a function in processes that it starts (launcher {plan.launcher!r})"
    return None


def _is_launched_alone(plan: Plan, environ: Mapping[str, str]) -> bool:
    """Whether ``accelerate launch`` has started this process only, and nothing else says how many there are."""
    return (
        "ACCELERATE_MIXED_PRECISION" in environ
        and "ACCELERATE_DYNAMO_BACKEND" in environ
        and plan.request["devices"] == "auto"
        and not plan.parts["cluster_environment"].creates_processes_externally
    )


def _alone(plan: Plan, given: Mapping[str, Any], environ: Mapping[str, str]) -> Plan:
    """The Plan for one device, as Accelerate runs such a process.

    Raises:
        ConfigurationError: Several processes were asked for: then there is an address.
    """
    if "MASTER_ADDR" in environ:
        is_cpu = plan.accelerator.name == "cpu"
        raise ConfigurationError(
            f"accelerate launch {'--cpu ' if is_cpu else ''}--num_processes: starts one process only, unless "
            f"{'--mpirun_hostfile' if is_cpu else '--multi_gpu (distributed_type: MULTI_GPU)'} is given. "
            f"{'Set' if is_cpu else 'Add it, set'} devices (or the environment variable CORE_DEVICES) to the number of "
            "processes, or start the script with torchrun or torch-hal run."
        )
    if len(plan.devices) == 1:
        return plan
    logger.warning(
        "accelerate launch has started one process, so one of %d devices is used. For all, pass --multi_gpu and "
        "--num_processes, or set devices (or the environment variable CORE_DEVICES) to -1",
        len(plan.devices),
    )
    return resolve(Request.read(environ=environ, **{**given, "devices": 1}))


def check_engines(environ: Mapping[str, str]) -> None:
    """Raise an error if an engine is selected that does not use the planned device.

    Raises:
        ConfigurationError: ``accelerate launch``, a plugin's object or TrainingArguments ask for one.
    """
    for variable, engine in ENGINES.items():
        if environ.get(variable, "false").lower() == "true":
            raise ConfigurationError(
                f"environment variable {variable}={environ[variable]}: {engine} under Accelerate does not take a "
                "planned device. accelerate launch sets it, and so do deepspeed_plugin, megatron_lm_plugin and "
                "TrainingArguments(deepspeed=...). Start the script without them, or use core.Runtime with a strategy "
                "for that engine."
            )


def _read_launched(given: dict[str, Any], requested: Request) -> None:
    environ = requested.environ
    check_engines(environ)
    if environ.get("ACCELERATE_USE_CPU", "false").lower() in ("true", "1", "yes"):
        asked = given.get("accelerator", requested.accelerator)
        if asked not in ("auto", "cpu"):
            raise ConfigurationError(
                f"environment variable ACCELERATE_USE_CPU={environ['ACCELERATE_USE_CPU']} contradicts "
                f"accelerator={asked!r}. Start the script without --cpu, or leave the accelerator out."
            )
        given["accelerator"] = "cpu"
    mixed = environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if mixed != "no" and given.get("precision", "auto") == "auto":
        if mixed not in MIXED_PRECISION:
            raise ConfigurationError(
                f"environment variable ACCELERATE_MIXED_PRECISION={mixed}: not supported on a planned device. "
                "Use bf16, fp16 or no."
            )
        given["precision"] = MIXED_PRECISION[mixed]
