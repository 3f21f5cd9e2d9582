"""Compiling a Module's steps with :func:`torch.compile`, and comparing them with steps that are not compiled."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from types import FunctionType
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from ...errors import ConfigurationError
from ...logging import show
from ...plan import Plan
from ...random import get_rng_state, set_rng_state
from ...strategies.base import Strategy
from ...strategies.batch_norm import SyncedBatchNorm
from ...utilities.nested import leaves, map_tensors
from ...utilities.torch_private import (
    COLLECTIVE_NAMESPACES,
    TorchDispatchMode,
    compiled_call,
    hooks_of,
    queue_after_backward,
    uncompiled_call,
)
from ..metrics.metric_log import MetricLog
from ..metrics.run_loggers import without_effect
from ..module.module import Module
from ..settings import Settings
from .step_module import StepModule

_logger = logging.getLogger(__name__)


FIRST_CALL = 3
"""The call of the training step before which the copy is timed: until then, it may have been compiled twice."""
REPEATS = 4
"""How many steps are timed of each; the fastest counts."""
LONGEST = 2.0
"""Seconds of the copy's steps after which no other one begins."""
LARGEST = 4 * 2**30
"""Bytes of parameters and buffers above which nothing is copied."""


class NotComparedError(Exception):
    """Why the steps are not compared."""


class Comparison:
    """Times forward and backward of the compiled training step, in some real steps, and of an uncompiled copy.

    Training is bit for bit what it is without: the copy's gradients are dropped, what it logs goes nowhere, random
    number generators are restored, and no other process takes part.

    Args:
        module: What is trained.
        strategy: Of the run.
    """

    def __init__(self, module: Module, strategy: Strategy) -> None:
        self._module, self._strategy = module, strategy
        self.logging = 0.0
        """Seconds that the module has spent in ``log`` and the like, which the copy leaves out; others add to it."""
        self._calls = 0
        self._shapes: list[Any] = []
        """Of the batch that the copy was timed with."""
        self._uncompiled = math.inf
        self._compiled: list[float] = []
        self.reason = ""
        """Why the steps are not compared; empty if they are."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to time."""
        return bool(self.reason) or len(self._compiled) >= REPEATS

    def call(self, compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the compiled step, and time what is to be timed."""
        self._calls += 1
        if self._calls < FIRST_CALL:
            return compiled(*args, **kwargs)
        if self._calls == FIRST_CALL:
            try:
                self._uncompiled = self._time_copy(args, kwargs)
                self._shapes = _shapes((args, kwargs))
            except NotComparedError as reason:
                self.reason = str(reason)
        if self.is_done or _shapes((args, kwargs)) != self._shapes:
            return compiled(*args, **kwargs)
        start, logging = self._now(), self.logging
        output = compiled(*args, **kwargs)
        self._time_backward(output, self._now() - start - (self.logging - logging))
        return output

    def _time_backward(self, output: Any, forward: float) -> None:
        loss = _loss_in(output)
        if loss is None or not loss.requires_grad:
            return

        def begin(gradient: Tensor) -> None:
            start = self._now()
            queue_after_backward(lambda: self._compiled.append(forward + self._now() - start))

        loss.register_hook(begin)  # type: ignore[no-untyped-call]

    def _now(self) -> float:
        self._strategy.accelerator.synchronize(self._strategy.root_device)
        return time.perf_counter()

    def _time_copy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        strategy = self._strategy
        accelerator, device = strategy.accelerator, strategy.root_device
        self._check()
        generators = get_rng_state(accelerator, device)
        try:
            copied = _copy_of(self._module)
            parameters = [parameter for parameter in copied.parameters() if parameter.requires_grad]
            step, now = StepModule(copied), self._now
            begun, fastest = time.perf_counter(), math.inf
            if strategy.world_size > 1:
                with _NoCollectives():  # type: ignore[no-untyped-call]
                    _step(step, copy.deepcopy((args, kwargs)), parameters, now)
            for _ in range(1 + REPEATS):  # the first is slower: memory is not allocated yet
                fastest = min(fastest, _step(step, copy.deepcopy((args, kwargs)), parameters, now))
                if time.perf_counter() - begun > LONGEST:
                    break
            return fastest
        except NotComparedError:
            raise
        except Exception as error:  # noqa: BLE001  the copy's step may raise anything, and training goes on
            if accelerator.is_out_of_memory(error):
                accelerator.empty_cache(device)
                raise NotComparedError("the memory does not suffice for a copy of the module") from None
            raise NotComparedError(f"a step of a copy raised {type(error).__name__}: {str(error)[:200]}") from None
        finally:
            set_rng_state(generators, accelerator, device)

    def _check(self) -> None:
        strategy, module = self._strategy, self._module
        is_divided = strategy.world_size > 1 and strategy.inference_is_collective
        if is_divided or any(type(own.data) is not Tensor for own in module.parameters()):
            raise NotComparedError(f"strategy {strategy.name!r} divides the module")
        size = sum(one.numel() * one.element_size() for one in (*module.parameters(), *module.buffers()))
        if size > LARGEST:
            raise NotComparedError(f"a copy of the module takes {size / 2**30:.1f} GiB")
        for name, part in module.named_modules():
            if isinstance(part, SyncedBatchNorm | nn.SyncBatchNorm) and strategy.world_size > 1:
                raise NotComparedError("batch norm over all processes communicates in each step")
            if any(isinstance(hook, FunctionType) for hook in hooks_of(part)):
                raise NotComparedError(f"{name or 'the module'} has hooks, which a copy would call too")

    def text(self, compiling: float) -> str:
        """The gain from compiling; empty if nothing was compared.

        Args:
            compiling: The seconds that it took.
        """
        if not self._compiled:
            self.reason = self.reason or "training ended before the steps could be timed"
            return ""
        compiled, process = min(self._compiled), " in process 0" if self._strategy.world_size > 1 else ""
        return (
            f"{compiled * 1e3:.3g} ms for forward and backward of a training step{process}, "
            f"{self._uncompiled / compiled:.2g} times as fast as uncompiled ({self._uncompiled * 1e3:.3g} ms); "
            f"compiling took {compiling:.1f} s"
        )


def _step(step: StepModule, batch: Any, parameters: list[nn.Parameter], now: Callable[[], float]) -> float:
    """The seconds of one step's forward and backward."""
    args, kwargs = batch
    start = now()
    loss = _loss_in(step(*args, **kwargs))
    if loss is None or not loss.requires_grad:
        raise NotComparedError("training_step returned no loss for a copy of the batch")
    torch.autograd.grad(loss, parameters, allow_unused=True)
    return now() - start


def _copy_of(module: Module) -> Module:
    """A copy, the steps of which change nothing outside it."""
    try:
        copied = copy.deepcopy(module)
    except Exception as error:  # noqa: BLE001  objects' own copying may raise anything, and training goes on
        raise NotComparedError(f"the module cannot be copied: {str(error)[:200]}") from None
    running = module.trainer
    trainer = object.__new__(type(running))
    vars(trainer).update(vars(running))
    loggers = without_effect(trainer.loggers)
    trainer.run = attrs.evolve(trainer.run, progress=copy.copy(trainer.progress), metric_log=MetricLog(loggers))
    copied._trainer = trainer
    vars(copied).update(log=_no_effect, log_dict=_no_effect, print=_no_effect, all_gather=_refuse)
    return copied


def _no_effect(*args: Any, **kwargs: Any) -> None:
    """The ``log`` and ``print`` of the copy."""


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise NotComparedError("training_step calls all_gather, and only one process would")


class _NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which a collective is rejected before it begins."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace in COLLECTIVE_NAMESPACES:
            raise NotComparedError("training_step communicates with other processes")
        return function(*args, **(kwargs or {}))


def _loss_in(output: Any) -> Tensor | None:
    loss = output.get("loss") if isinstance(output, Mapping) else output
    return loss if isinstance(loss, Tensor) else None


def _shapes(batch: Any) -> list[Any]:
    return [leaf for _, leaf in leaves(map_tensors(lambda tensor: (tensor.shape, tensor.dtype), batch))]


OPAQUE = ("log", "log_dict", "print", "all_gather")
"""Methods of a Module that Python runs within a compiled step: they act on the Trainer."""


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
    compares = strategy.is_global_zero and not module.trainer.is_trial
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
