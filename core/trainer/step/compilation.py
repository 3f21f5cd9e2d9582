"""Compiling a Module's steps with :func:`torch.compile`."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from ...errors import ConfigurationError
from ...logging import show
from ...plan import Plan
from ...strategies.base import Strategy
from ...utilities.torch_private import compiled_call, uncompiled_call
from ..module.module import Module
from ..settings import Settings
from .step_module import StepModule

_logger = logging.getLogger(__name__)


OPAQUE = ("log", "log_dict", "print", "all_gather")
"""Methods of a Module that Python runs within a compiled step: they act on the Trainer."""

PROGRESS_SECONDS = 15.0
"""How often it is said that a step still compiles."""


def check_compile(module: Module, settings: Settings, strategy: Strategy, plan: Plan) -> None:
    """Reject what cannot be compiled.

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
        tells: Whether this process says what compiles.
    """

    def __init__(self, step_module: StepModule, compile_function: Callable[[Any], Any], tells: bool) -> None:
        self._step_module, self._tells = step_module, tells
        self._call = compile_function(uncompiled_call(step_module))
        self._times: dict[str, tuple[int, float, float]] = {}
        """By step: the number of calls, and the seconds of the first and of the fastest one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step, and measure it."""
        name = self._step_module.name
        is_first = name not in self._times
        start = time.perf_counter()
        with _progress(name) if is_first and self._tells else nullcontext():
            output = self._call(*args, **kwargs)
        taken = time.perf_counter() - start
        calls, first, fastest = self._times.get(name, (0, taken, math.inf))
        self._times[name] = calls + 1, first, min(taken, fastest)
        return output

    def report(self) -> None:
        """Say how long compiling took and what a call takes since, in a log that shows INFO or on stderr."""
        for name, (calls, first, fastest) in self._times.items():
            show(
                _logger,
                f"compile: {name} took {first:.1f} s to compile at its first call; the fastest of its {calls} calls "
                f"took {fastest * 1e3:.3f} ms",
            )


@contextmanager
def _progress(name: str) -> Iterator[None]:
    """A context in which it is said from time to time that the step ``name`` compiles."""
    began, ended = time.perf_counter(), threading.Event()

    def tell() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            show(_logger, f"compile: {name} has been compiling for {time.perf_counter() - began:.0f} s")

    threading.Thread(target=tell, name="core-compile", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


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
    compiled = CompiledSteps(step_module, compiler, strategy.is_global_zero)
    opaque = [name for name in OPAQUE if name not in vars(module)]
    for name in opaque:
        vars(module)[name] = torch.compiler.disable(getattr(module, name))  # type: ignore[no-untyped-call]
    try:
        with compiled_call(step_module, compiled):
            yield
    finally:
        for name in opaque:
            del vars(module)[name]
        if strategy.is_global_zero:
            compiled.report()
