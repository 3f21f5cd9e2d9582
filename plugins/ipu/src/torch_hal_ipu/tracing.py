"""A step as poptorch compiles it: its Python runs once, and nothing but tensors comes out of it later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from core import Module
from core.errors import ConfigurationError
from core.nested import map_tensors

__all__ = ["TracedStep"]


@attrs.frozen
class _Result:
    """A place for a tensor in what a step returned."""

    is_scalar: bool


@attrs.frozen
class _Logged:
    """A tensor that the step logged, and how."""

    module: Module
    name: str
    options: Mapping[str, Any]


@attrs.define
class _Trace:
    """What the step's Python did in its one run, beside computing."""

    output: Any = None
    """What it returned, with a :class:`_Result` in place of each tensor."""
    logged: list[_Logged] = attrs.field(factory=list)


class TracedStep(nn.Module):
    """``function`` as a module that takes a batch and returns tensors, to be compiled.

    What the function logs through :meth:`core.Module.log` becomes a result of the compiled step, and is logged after
    each call of it.

    Args:
        module: Whose parameters the function uses.
        function: ``function(batch)`` returns tensors, nested in any way.
    """

    def __init__(self, module: nn.Module, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.module = module
        self.function = function
        self.trace = _Trace()  # one object: poptorch runs forward of a shallow copy

    def forward(self, batch: Any) -> tuple[Tensor, ...]:
        """The function's tensors, then those that it logged.

        Raises:
            ConfigurationError: There is none, or a number was logged.
        """
        with _recorded(self.module) as logged:
            output = self.function(batch)
        results: list[Tensor] = []

        def take(tensor: Tensor) -> _Result:
            results.append(tensor)
            return _Result(is_scalar=tensor.dim() == 0)

        self.trace.output = map_tensors(take, output)
        self.trace.logged = [entry for entry, _ in logged]
        results += [value for _, value in logged]
        if not results:
            raise ConfigurationError(
                "strategy 'ipu': a step returned no tensor and logged none, so nothing of it can be compiled. Valid: "
                "one that does."
            )
        return tuple(results)

    def finish(self, results: Any, batch_size: int) -> Any:
        """What the function returned, from ``results`` of a call: tensors joined over the batch's parts.

        A scalar is the mean over the parts. What was logged is logged, with ``batch_size`` as its weight.
        """
        remaining = iter(results)
        output = _filled(self.trace.output, remaining)
        for entry, value in zip(self.trace.logged, remaining, strict=True):
            options = {"batch_size": batch_size, **entry.options}
            combine = _COMBINE.get(options.get("reduce_fx", "mean"), torch.mean)
            entry.module.log(entry.name, combine(value), **options)
        return output


_COMBINE: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "min": torch.min,
    "max": torch.max,
}
"""How the parts' values of what is logged become one."""


def _filled(output: Any, results: Iterator[Tensor]) -> Any:
    if isinstance(output, _Result):
        tensor = next(results)
        return tensor.float().mean().to(tensor.dtype) if output.is_scalar else tensor
    if isinstance(output, Mapping):
        return {name: _filled(item, results) for name, item in output.items()}
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*(_filled(item, results) for item in output))
    if isinstance(output, list | tuple):
        return type(output)(_filled(item, results) for item in output)
    return output


@contextmanager
def _recorded(module: nn.Module) -> Iterator[list[tuple[_Logged, Tensor]]]:
    """Within, what any :class:`core.Module` in ``module`` logs is kept instead."""
    logged: list[tuple[_Logged, Tensor]] = []
    modules = [part for part in module.modules() if isinstance(part, Module)]
    for part in modules:
        part.__dict__["log"] = partial(_record, logged, part)
    try:
        yield logged
    finally:
        for part in modules:
            del part.__dict__["log"]


def _record(
    logged: list[tuple[_Logged, Tensor]],
    module: Module,
    name: str,
    value: Any,
    prog_bar: bool = False,
    on_step: bool | None = None,
    on_epoch: bool | None = None,
    reduce_fx: str = "mean",
    sync_dist: bool = False,
    batch_size: int | None = None,
) -> None:
    """What stands in for :meth:`core.Module.log` while a step is compiled; with its arguments."""
    if not isinstance(value, Tensor) or value.dim():
        raise ConfigurationError(
            f"log({name!r}, {value!r}) in a step that is compiled: only what is computed anew in each call can be "
            "logged there. Valid: a scalar tensor that the step computes, or a hook such as on_train_batch_end."
        )
    options: dict[str, Any] = {
        "prog_bar": prog_bar,
        "on_step": on_step,
        "on_epoch": on_epoch,
        "reduce_fx": reduce_fx,
        "sync_dist": sync_dist,
    }
    if batch_size is not None:
        options["batch_size"] = batch_size
    logged.append((_Logged(module, name, options), value))
