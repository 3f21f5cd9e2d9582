"""Environment variables that change a run under Accelerate or Lightning, and what to set for that here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from ..errors import ConfigurationError
from ..hints.remedies import with_sources
from .model import Plan
from .request import ARGUMENTS, Request
from .resolution import resolve

OFF = ("", "0", "no", "none", "false", "off", "n", "f")
"""Values, in lower case, with which a switch changes nothing."""

_PRECISIONS = MappingProxyType({"fp16": "16-mixed", "bf16": "bf16-mixed", "1": "16-mixed", "true": "16-mixed"})
_ON = ("1", "true", "yes", "y", "t", "on")
_CPU = MappingProxyType(dict.fromkeys(_ON, "cpu"))


@attrs.frozen
class Foreign:
    """A variable of another library."""

    argument: str
    """The argument that says the same here; without effect where the user gives that one."""
    remedy: str
    """The setting to use here; ``{}`` stands for the argument's value."""
    means: Mapping[str, str] = MappingProxyType({})
    """The argument's value for a value of the variable; by default the same."""
    fronts: tuple[str, ...] = ("Runtime", "Trainer")
    """The front ends that reject it."""
    library: str = "Accelerate"
    """The library that reads it."""


def _own(argument: str, means: Mapping[str, str] = MappingProxyType({}), **others: str | tuple[str, ...]) -> Foreign:
    variable = f"CORE_{argument.upper()}"
    return Foreign(argument, f"Set {argument}={{!r}}, or {variable}={{}}.", means, **others)  # type: ignore[arg-type]


_ENGINE = "Set strategy={0!r} or another of its names (pip install torch-hal-{0})."
_COMPILE = "Call torch.compile(model, backend=...), or set Trainer(compile=...)."
_ACCUMULATION = "Set gradient_accumulation_steps={}."
_RUNTIME, _TRAINER = ("Runtime",), ("Trainer",)

FOREIGN: Mapping[str, Foreign] = MappingProxyType(
    {
        "ACCELERATE_MIXED_PRECISION": _own("precision", _PRECISIONS),
        "ACCELERATE_USE_CPU": _own("accelerator", _CPU),
        "ACCELERATE_TORCH_DEVICE": Foreign("accelerator", "Set accelerator= to the hardware, and devices=."),
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": Foreign(
            "gradient_accumulation_steps", _ACCUMULATION, fronts=_RUNTIME
        ),
        "ACCELERATE_DYNAMO_BACKEND": Foreign("compile", _COMPILE),
        "ACCELERATE_USE_DEEPSPEED": Foreign("strategy", _ENGINE.format("deepspeed")),
        "ACCELERATE_USE_FSDP": Foreign("strategy", _ENGINE.format("fsdp")),
        "ACCELERATE_USE_MEGATRON_LM": Foreign("strategy", "torch-hal has no strategy for Megatron-LM."),
        "ACCELERATE_USE_PARALLELISM_CONFIG": Foreign("strategy", _ENGINE.format("parallel")),
        "ACCELERATE_DOWNCAST_BF16": Foreign("precision", "Set precision='bf16-true'."),
        "ACCELERATE_DEBUG_MODE": Foreign(
            "debug", "Set debug=True, or CORE_DEBUG=1.", MappingProxyType(dict.fromkeys(_ON, "True")), _RUNTIME
        ),
        # Early versions had no prefix.
        "MIXED_PRECISION": _own("precision", _PRECISIONS, fronts=_RUNTIME),
        "USE_CPU": _own("accelerator", _CPU, fronts=_RUNTIME),
        "GRADIENT_ACCUMULATION_STEPS": Foreign("gradient_accumulation_steps", _ACCUMULATION, fronts=_RUNTIME),
        "DYNAMO_BACKEND": Foreign("compile", _COMPILE, fronts=_RUNTIME),
        "USE_DEEPSPEED": Foreign("strategy", _ENGINE.format("deepspeed"), fronts=_RUNTIME),
        "USE_FSDP": Foreign("strategy", _ENGINE.format("fsdp"), fronts=_RUNTIME),
        "USE_MEGATRON_LM": Foreign("strategy", "torch-hal has no strategy for Megatron-LM.", fronts=_RUNTIME),
        **{
            f"LT_{name.upper()}": _own(name, fronts=_RUNTIME, library="Fabric")
            for name in ("accelerator", "strategy", "devices", "num_nodes", "precision")
        },
        "PL_TORCH_DISTRIBUTED_BACKEND": Foreign(
            "strategy", "Set strategy=DDPStrategy(process_group_backend={!r}).", fronts=_TRAINER, library="Lightning"
        ),
    }
)
"""By name. What another library reads, and torch-hal does as well or in the same way without it, is not in it."""

PREFIX_OF_TRAINER = "PL_TRAINER_"
"""Lightning's Trainer takes each argument that is not given from the variable of this name and the argument's."""


def _with_fp16(request: Request) -> Request:
    """``request``; with mixed precision if ``USE_FP16`` is set and nothing else says the precision.

    Raises:
        ConfigurationError: The variable is neither on nor off.
    """
    text = request.environ.get("USE_FP16", "").strip().lower()
    if text in OFF or request.argument("precision").source != "default":
        return request
    if text not in _ON:
        raise ConfigurationError(f"environment variable USE_FP16={text[:100]!r}: must be 0 or 1.")
    return attrs.evolve(request, precision="16-mixed", sources={**request.sources, "precision": "USE_FP16"})


def resolve_for(front: str, request: Request, facts: Mapping[str, object]) -> Plan:
    """The Plan of ``request``, unless a variable would change this run under the library that reads it.

    Args:
        front: The front end: ``"Runtime"`` or ``"Trainer"``.
        request: What the user asked for, and the environment variables.
        facts: The front end's other arguments, by name.

    Raises:
        ConfigurationError: There is such a variable, or as :func:`core.plan.resolve`.
    """
    plan = resolve(_with_fp16(request) if front in _RUNTIME else request)
    chosen = {name: choice.name for name, choice in plan.choices().items()}
    values = {**facts, "devices": len(plan.devices), "num_nodes": plan.num_nodes, **chosen}
    for name in sorted(request.environ):
        text, argument = request.environ[name].strip(), name.removeprefix(PREFIX_OF_TRAINER).lower()
        known = FOREIGN.get(name)
        if known is None and name.startswith(PREFIX_OF_TRAINER) and argument in values:
            known = Foreign(argument, f"Pass Trainer({argument}={{}}).", fronts=_TRAINER, library="Lightning")
        if known is None or front not in known.fronts or text.lower() in ("", "auto"):
            continue
        is_given = known.argument in ARGUMENTS and request.argument(known.argument).source != "default"
        is_off = text.lower() in OFF and known.library == "Accelerate"
        wanted, value = known.means.get(text.lower(), text), values.get(known.argument)
        # A device, such as cuda:0, has the accelerator's name.
        is_alike = str(value).lower() in (wanted.lower(), wanted.lower().partition(":")[0])
        if is_given or is_off or is_alike or (known.argument == "compile" and value):
            continue
        raise ConfigurationError(
            f"environment variable {name}={text[:100]!r}: {known.library} reads it, and torch-hal does not. "
            f"{with_sources(known.remedy.format(wanted[:100], wanted[:100]))} Or unset it."
        )
    return plan
