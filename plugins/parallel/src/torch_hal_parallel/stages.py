"""Which layers a process of a pipeline holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from torch_hal.errors import ConfigurationError, WrongTypeError, quoted
from torch_hal.precisions import Precision
from torch_hal.strategies.sharding import matches

__all__ = ["Stage", "check_pipeline_plan", "find_parts", "split_evenly", "stage_ranges"]

VALID = "names of modules in the order in which the model calls them, each with the output of the one before"


class Stage(nn.Module):
    """Some of a model's parts, one after another.

    Args:
        parts: The parts.
        is_first: Whether the model's inputs come in here.
        is_last: Whether the model's output leaves here.
        precision: Of the run.
    """

    def __init__(self, parts: Sequence[nn.Module], is_first: bool, is_last: bool, precision: Precision) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.is_first, self.is_last, self._precision = is_first, is_last, precision

    def forward(self, *inputs: Any) -> Any:
        """The output of the last part."""
        precision = self._precision
        with precision.forward_context():
            if self.is_first:
                inputs = precision.convert_input(inputs)
            output = inputs[0]
            for position, part in enumerate(self.parts):
                output = part(*inputs) if position == 0 else part(output)
        if not isinstance(output, Tensor):
            raise ConfigurationError(
                f"pipeline_plan: {type(self.parts[-1]).__name__} returned an object of type {type(output).__name__}. "
                "Each part of a pipeline must return one tensor."
            )
        return precision.convert_output(output) if self.is_last else output


def check_pipeline_plan(plan: object) -> None:
    """Check that ``plan`` is a list of names.

    Raises:
        WrongTypeError: It is not.
        ConfigurationError: It is empty.
    """
    if isinstance(plan, str) or not isinstance(plan, Iterable) or not all(isinstance(name, str) for name in plan):
        raise WrongTypeError(f"pipeline_plan={plan!r}: must be a list of {VALID}.")
    if not list(plan):
        raise ConfigurationError(f"pipeline_plan={plan!r}: is empty. Give {VALID}.")


def find_parts(model: nn.Module, given: Iterable[str] | None) -> dict[str, nn.Module]:
    """The parts of ``model`` in the order in which they are called, by name.

    Args:
        model: The module that is divided.
        given: A plan; by default the model's own attribute ``pipeline_plan``, or all children of a Sequential.

    Raises:
        ConfigurationError: There is no plan, a name in it matches nothing, or it leaves out parameters.
        WrongTypeError: The model's own attribute is no plan.
    """
    plan: Any = given if given is not None else getattr(model, "pipeline_plan", None)
    if plan is None and isinstance(model, nn.Sequential):
        plan = ["*"]
    if plan is None:
        raise ConfigurationError(
            f"pipeline_plan is missing: neither the strategy nor {type(model).__name__} has one, and it is no "
            f"Sequential. Set it to a list of {VALID}."
        )
    check_pipeline_plan(plan)
    parts: dict[str, nn.Module] = {}
    for pattern in plan:
        found = {name: module for name, module in model.named_modules() if name and matches(name, pattern)}
        if not found:
            raise ConfigurationError(
                f"pipeline_plan: {type(model).__name__} has no module named {pattern!r}. Give a list of {VALID}."
            )
        if again := sorted(found.keys() & parts.keys()):
            raise ConfigurationError(f"pipeline_plan: names {quoted(again)} twice. Name each part once.")
        parts.update(found)
    held: dict[int, str] = {}
    for name, part in parts.items():
        for own, parameter in part.named_parameters():
            if id(parameter) in held:
                raise ConfigurationError(
                    f"pipeline_plan: {name!r} and {held[id(parameter)]!r} share the parameter {own!r}, and gradients "
                    "of shared parameters cannot be added up along a pipeline. Give each part parameters of its own, "
                    "or use tensor_parallel or fsdp."
                )
        held |= {id(parameter): name for parameter in part.parameters()}
    left = [name for name, parameter in model.named_parameters() if id(parameter) not in held]
    if left:
        raise ConfigurationError(
            f"pipeline_plan: leaves out the parameters {quoted(left[:10])} of {type(model).__name__}. Name the modules "
            "that hold them."
        )
    return parts


def split_evenly(sizes: Sequence[int], stages: int) -> list[range]:
    """Consecutive parts for each stage, so that the largest stage is as small as possible.

    Args:
        sizes: Of the parts.
        stages: Their number; each gets at least one part.

    Raises:
        ConfigurationError: There are fewer parts than stages.
    """
    count = len(sizes)
    if count < stages:
        raise ConfigurationError(
            f"pipeline_plan: names {count} parts for {stages} stages. Name at least {stages}, such as each layer, or "
            "use fewer processes for the pipeline."
        )
    before = [0]
    for size in sizes:
        before.append(before[-1] + size)
    # best[k][n]: the size of the largest stage if the first n parts are in k stages, and where the last one begins
    best: list[dict[int, tuple[int, int]]] = [{0: (0, 0)}]
    for k in range(1, stages + 1):
        row = {}
        for n in range(k, count - (stages - k) + 1):
            row[n] = min((max(best[k - 1][m][0], before[n] - before[m]), m) for m in best[k - 1] if m < n)
        best.append(row)
    ends = [count]
    for k in range(stages, 0, -1):
        ends.append(best[k][ends[-1]][1])
    ends.reverse()
    return [range(start, end) for start, end in pairwise(ends)]


def stage_ranges(parts: Sequence[nn.Module], stages: int, split: Sequence[int] | None) -> list[range]:
    """Which parts are in each stage.

    Args:
        parts: Those of the whole model, in order.
        stages: The number of stages.
        split: The number of parts in each stage; if ``None``, stages have about equally many parameters.

    Raises:
        ConfigurationError: ``split`` does not fit the parts and stages, or there are fewer parts than stages.
    """
    if split is None:
        return split_evenly([sum(p.numel() for p in part.parameters()) for part in parts], stages)
    if len(split) != stages or sum(split) != len(parts) or min(split) < 1:
        raise ConfigurationError(
            f"pipeline_split={list(split)}: must be {stages} positive numbers, one for each stage, that add up to the "
            f"{len(parts)} parts of pipeline_plan."
        )
    ends = [sum(split[:number]) for number in range(stages + 1)]
    return [range(start, end) for start, end in pairwise(ends)]
