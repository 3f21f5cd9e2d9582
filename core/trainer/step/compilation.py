"""Compiling a Module's steps with :func:`torch.compile`."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch

from ...errors import ConfigurationError
from ...logging import show
from ...plan import Plan
from ...strategies.base import Strategy
from ...utilities.torch_private import compiled_call, uncompiled_call
from ..module.module import Module
from ..settings import Settings
from .compile_comparison import Comparison
from .step_module import StepModule

__all__ = ["CompiledSteps", "check_compile", "compiled_steps"]

_logger = logging.getLogger(__name__)

OPAQUE = ("log", "log_dict", "print", "all_gather")
"""Methods of a Module that Python runs within a compiled step: they act on the Trainer."""


def check_compile(module: Module, settings: Settings, strategy: Strategy, plan: Plan) -> None:
    """Refuse to compile what cannot be compiled.

    Raises:
        ConfigurationError: The strategy cannot run compiled steps, the module optimizes manually, or a compiled module
            would have to be sent to another process.
    """
    given = module._given_compiler
    if not settings.compile and given is None:
        return
    what = f"compile={settings.compile!r}" if settings.compile else "module=torch.compile(...)"
    strategy.check_compile(what)
    if settings.compile and given is not None:
        raise ConfigurationError(f"{what}: the module is already compiled by torch.compile. Leave out one of the two.")
    if not module.automatic_optimization:
        raise ConfigurationError(
            f"{what}: {type(module).__name__} has automatic_optimization=False, so its training step also runs "
            "backward and the optimizers. Leave it out, and compile the networks: self.network.compile()."
        )
    if given is not None and plan.runs_function:
        raise ConfigurationError(
            f"{what}: strategy {strategy.name!r} sends the module to other processes, and what torch.compile returns "
            "cannot be sent. Pass the module itself, and set Trainer(compile=True) or compile=its options."
        )


class CompiledSteps:
    """The forward pass of a StepModule, compiled; and how long its calls took.

    Args:
        step_module: What is compiled.
        compile_function: Compiles a function.
        comparison: Compares the training step with an uncompiled one; ``None`` for no comparison.
    """

    def __init__(
        self, step_module: StepModule, compile_function: Callable[[Any], Any], comparison: Comparison | None
    ) -> None:
        self._step_module, self._comparison = step_module, comparison
        self._is_told, self._reason = False, ""
        self._call = compile_function(uncompiled_call(step_module))
        self.times: dict[str, tuple[int, float, float]] = {}
        """By step: the number of calls, and the seconds of the first and of the fastest one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step, and measure it."""
        if self._comparison is not None and self._step_module.name == "training_step":
            if not self._comparison.is_done:
                return self._comparison.call(self._measured, args, kwargs)
            self._reason = self._end_comparison()
        return self._measured(*args, **kwargs)

    def _measured(self, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        output = self._call(*args, **kwargs)
        taken = time.perf_counter() - start
        calls, first, fastest = self.times.get(self._step_module.name, (0, taken, math.inf))
        self.times[self._step_module.name] = calls + 1, first, min(taken, fastest)
        return output

    def _end_comparison(self) -> str:
        """Say what compiling bought, or return why that is not known."""
        comparison, self._comparison = self._comparison, None
        if comparison is None or "training_step" not in self.times:
            return ""
        text = comparison.text(self.times["training_step"][1])
        if text:
            show(_logger, f"compile: {text}")
            self._is_told = True
        return "" if text else f"; not compared with uncompiled: {comparison.reason}"

    def report(self) -> None:
        """Say how long compiling took and what a call takes since, in a log that shows INFO or on stderr."""
        self._reason = self._end_comparison() or self._reason
        for name, (calls, first, fastest) in self.times.items():
            if name == "training_step" and self._is_told:
                continue
            text = (
                f"compile: {name} took {first:.1f} s to compile at its first call; the fastest of its {calls} calls "
                f"took {fastest * 1e3:.3f} ms"
            )
            show(_logger, text + (self._reason if name == "training_step" else ""))

    def outside(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """``method``, which Python runs within a compiled step."""

        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._comparison is None:
                return method(*args, **kwargs)
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                if self._comparison is not None:
                    self._comparison.logging += time.perf_counter() - start

        return torch.compiler.disable(run)  # type: ignore[no-untyped-call, no-any-return]


@contextmanager
def compiled_steps(module: Module, settings: Settings, strategy: Strategy) -> Iterator[None]:
    """A context in which the steps of ``module`` are compiled if that was asked for.

    The module's parameters and buffers keep their names, since only the call of its StepModule is replaced.
    """
    compiler = module._given_compiler
    if settings.compile:
        own = settings.compile if isinstance(settings.compile, Mapping) else {}
        compiler = partial(torch.compile, **{**strategy.compile_options, **own})
    if compiler is None:
        yield
        return
    step_module = StepModule.of(module)
    # One process compares; the others wait for it in the next reduction.
    compares = strategy.is_global_zero and not module._trainer.is_trial
    compiled = CompiledSteps(step_module, compiler, Comparison(module, strategy) if compares else None)
    opaque = [name for name in OPAQUE if name not in vars(module)]
    for name in opaque:
        vars(module)[name] = compiled.outside(getattr(module, name))
    try:
        with compiled_call(step_module, compiled):
            yield
    finally:
        for name in opaque:
            del vars(module)[name]
        if strategy.is_global_zero:
            compiled.report()
