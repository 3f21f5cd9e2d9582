"""A step as poptorch compiles it: its Python runs once, and nothing but tensors comes out of it later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from torch import Tensor, nn

from torch_hal.errors import ConfigurationError
from torch_hal.strategies import LOG_REDUCTIONS, LoggedValue, collect_logs, reduce_logged
from torch_hal.utilities.nested import map_tensors

__all__ = ["TracedStep"]


@attrs.frozen
class _Result:
    """A place for a tensor in what a step returned."""

    is_scalar: bool


@attrs.define
class _Trace:
    """What the step's Python did in its single run, besides computing."""

    output: Any = None
    """What it returned, with a :class:`_Result` in place of each tensor."""
    logged: list[LoggedValue] = attrs.field(factory=list)
    """What it logged, without the tensors."""


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
        logged: list[LoggedValue] = []

        def collect(value: LoggedValue) -> None:
            if not isinstance(value.value, Tensor) or value.value.dim():
                raise ConfigurationError(
                    f"log({value.name!r}, {value.value!r}) in a step that is compiled: only what is computed in each "
                    "call can be logged there. Log a scalar tensor that the step computes, or use a hook such as "
                    "on_train_batch_end."
                )
            logged.append(value)

        with collect_logs(collect):
            output = self.function(batch)
        results: list[Tensor] = []

        def take(tensor: Tensor) -> _Result:
            results.append(tensor)
            return _Result(is_scalar=tensor.dim() == 0)

        self.trace.output = map_tensors(take, output)
        self.trace.logged = [attrs.evolve(value, value=None) for value in logged]
        results += [value.value for value in logged]
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
        for logged, by_part in zip(self.trace.logged, remaining, strict=True):
            values = by_part.reshape(-1).unbind()
            if logged.reduce_fx in LOG_REDUCTIONS:  # otherwise logging it raises the error
                values = (reduce_logged(values, [1] * len(values), logged.reduce_fx),)
            size = batch_size if logged.batch_size is None else logged.batch_size
            attrs.evolve(logged, value=values[0], batch_size=size).log()
        return output


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
