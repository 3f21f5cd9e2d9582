"""Tensor parallelism by a plan: which layers are sharded, and how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from ...errors import ConfigurationError, WrongTypeError, quoted

__all__ = ["Plan", "apply_plan", "check_plan", "find_plan", "matches"]

Plan = Mapping[str, ParallelStyle | str]
"""Names of modules, with ``*`` for any, and how each is sharded."""

STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "sequence": SequenceParallel,
}
VALID = f"a mapping of module names to {quoted(STYLES)} or torch's ParallelStyle objects"


def check_plan(plan: object) -> None:
    """Check that ``plan`` is a :data:`Plan`.

    Raises:
        WrongTypeError: It is not a mapping of names to styles.
        ConfigurationError: It is empty, or a style is unknown.
    """
    if not isinstance(plan, Mapping) or not all(isinstance(name, str) for name in plan):
        raise WrongTypeError(f"tensor_parallel_plan={plan!r} must be {VALID}.")
    if not plan:
        raise ConfigurationError(f"tensor_parallel_plan={plan!r} is empty. Give {VALID}.")
    for name, style in plan.items():
        if isinstance(style, str) and style not in STYLES:
            raise ConfigurationError(f"tensor_parallel_plan[{name!r}]={style!r} is unknown. Valid: {quoted(STYLES)}.")
        if not isinstance(style, str | ParallelStyle):
            raise WrongTypeError(f"tensor_parallel_plan[{name!r}]={style!r} has the wrong type. Give {VALID}.")


def find_plan(root: nn.Module, given: Plan | None) -> tuple[nn.Module, Plan]:
    """The plan, and the module that its names are of.

    The one given is about the outermost module that has all the names in it; else the first module with an attribute
    ``tensor_parallel_plan`` says.

    Raises:
        ConfigurationError: There is none, or no module has the names in it.
        WrongTypeError: A model's own attribute is not a plan.
    """
    if given is None:
        for module in root.modules():
            plan: Any = getattr(module, "tensor_parallel_plan", None)
            if plan is not None:
                check_plan(plan)
                return _owner(module, plan), plan
        raise ConfigurationError(
            f"tensor_parallel_plan is missing: neither the strategy nor a part of the model has one. Set it to {VALID}."
        )
    return _owner(root, given), given


def apply_plan(module: nn.Module, plan: Plan, mesh: DeviceMesh) -> None:
    """Shard the layers of ``module`` that ``plan`` names over the one-dimensional ``mesh``, in place.

    Raises:
        ConfigurationError: A style that was given as a string does not divide a layer into equal shards. An object of
            torch may join shards of different sizes again, as ``output_layouts=Replicate()`` does.
    """
    styles = {name: STYLES[style]() if isinstance(style, str) else style for name, style in plan.items()}
    parallelize_module(module, mesh, styles)
    for pattern in (name for name, style in plan.items() if isinstance(style, str)):
        for layer, part in module.named_modules():
            if matches(layer, pattern):
                _check_shards(f"tensor_parallel_plan[{pattern!r}]={plan[pattern]!r}", layer, part)


def _check_shards(given: str, layer: str, part: nn.Module) -> None:
    """Refuse shards of different sizes, from which the layer after this one, or a view of its output, cannot go on."""
    for name, parameter in part.named_parameters(recurse=False):
        tensor: object = parameter
        if not isinstance(tensor, DTensor):
            continue
        for place in tensor.placements:
            if not isinstance(place, Shard) or (isinstance(part, nn.Embedding) and place.dim == 0):
                continue  # sharded by rows: each process has whole outputs
            length, processes = tensor.shape[place.dim], tensor.device_mesh.size()
            if length % processes:
                raise ConfigurationError(
                    f"{given}: dimension {place.dim} of {layer}.{name}, of length {length}, does not divide into "
                    f"{processes} equal shards. Use another number of processes, or leave this layer out of the plan."
                )


def _owner(root: nn.Module, plan: Plan) -> nn.Module:
    missing: list[str] = []
    for module in root.modules():
        names = [name for name, _ in module.named_modules()]
        absent = [pattern for pattern in plan if not any(matches(name, pattern) for name in names)]
        if not absent:
            return module
        missing = missing or absent
        if len(absent) < len(missing):
            missing = absent
    raise ConfigurationError(f"tensor_parallel_plan: no module is named {quoted(missing)}. Valid: {VALID}.")


def matches(name: str, pattern: str) -> bool:
    """Whether the dotted ``name`` of a module fits ``pattern``, in which ``*`` matches any one part."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))
