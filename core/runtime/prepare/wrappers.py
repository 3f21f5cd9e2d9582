"""What ``prepare`` returns: module, optimizer and scheduler, which act as the strategy and the precision need it."""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...hints.remedies import remedies
from ...precisions.base import Precision
from ...strategies.base import Strategy
from ...strategies.wrapping import OptimizerWrapper, joined_class, unwrap_optimizer
from ...utilities.torch_private import count_scheduler_call, uncompiled
from ..accumulation import OptimizerGate
from ..gradient_state import GradientState

_OWN = ("forward", "_core_wrapped", "_core_inner", "_core_precision", "_core_called")


def needs_forward_context(precision: Precision) -> bool:
    """Whether ``precision`` does anything around a forward pass."""
    return any(precision.overrides(hook) for hook in ("forward_context", "convert_input", "convert_output"))


class Called:
    """The forward passes of a prepared module for a loss, and whether backward has to be told to reduce gradients.

    A forward pass only writes constants here: torch.compile would compile it again for each number that it read.
    """

    __slots__ = ("_is_forced", "_is_unreduced", "_num_paused", "by_loop", "checked_by", "is_local", "is_new")

    def __init__(self) -> None:
        self.by_loop = False
        """Whether there was any: in a loop that calls something else, nothing is reduced."""
        self.is_new = False
        """Whether one came since the last backward pass."""
        self._is_unreduced = True
        """Whether the last one was in :meth:`paused`, or there was none."""
        self._num_paused, self._is_forced = 0, False
        self.is_local = False
        """Whether the last backward pass after a forward pass was in :meth:`paused`."""
        self.checked_by = WeakSet[Optimizer]()
        """The optimizers whose steps look at it."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Backward does not reduce gradients, nor later those of forward passes in this context."""
        before, self.is_new = self.is_new, False
        self._num_paused += 1
        try:
            yield
        finally:
            self._num_paused -= 1
            self._is_unreduced = self._is_unreduced or self.is_new
            self.is_new = before

    @contextmanager
    def forced(self) -> Iterator[None]:
        """Backward reduces gradients in any case."""
        before, self._is_forced = self._is_forced, True
        try:
            yield
        finally:
            self._is_forced = before

    def spend(self) -> bool:
        """Note a backward pass; return whether it must be made to reduce the gradients of this module.

        By itself it reduces them if a forward pass came since the last one. Another loss of the same forward pass, or
        of an earlier one, comes without.
        """
        is_repeated, self.is_new = not self.is_new, False
        if not is_repeated:
            self._is_unreduced = bool(self._num_paused)
            self.is_local = self._is_unreduced
        if self._is_forced:
            self.is_local = False
        return self._is_forced or (is_repeated and not (self._is_unreduced or self._num_paused))


class PreparedModule(nn.Module):
    """The user's module, which calls ``wrapped`` for its forward pass, in the precision's context.

    It is an instance of the user's class, and has the same attributes, parameters, buffers, submodules, hooks and
    mode: both objects share one ``__dict__``. So ``isinstance``, ``state_dict()`` and ``named_parameters()`` are those
    of the user's module in every configuration. Methods of the user's class that call ``self(...)`` run the prepared
    forward pass.

    Args:
        wrapped: The module as the strategy set it up.
        inner: The user's own module.
        precision: The precision whose context is used.
    """

    _core_wrapped: nn.Module
    _core_inner: nn.Module
    _core_precision: Precision
    _core_called: Called

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The user's attributes have any type."""

    else:

        def __getattr__(self, name: str) -> Any:
            """As the user's class does it; an error names what to write for what only a wrapper has."""
            try:
                return super().__getattr__(name)
            except AttributeError as error:
                if instead := remedies("attributes", ["PreparedModule"]).get(name):
                    raise AttributeError(f"{error}. {instead}", obj=self) from None
                raise

    def __init_subclass__(cls) -> None:
        """Not passed on: the user's class, which may register its subclasses, comes next."""

    def __new__(cls, wrapped: nn.Module, inner: nn.Module, precision: Precision) -> Self:
        """An instance of the class and of the user's class."""
        # The user's class may override __new__, __init__ and __setattr__: none of them runs for a prepared module.
        self: Self = object.__new__(joined_class(PreparedModule, type(inner), _OWN, "_core_inner"))
        object.__setattr__(self, "__dict__", inner.__dict__)
        object.__setattr__(self, "_core_wrapped", wrapped)
        object.__setattr__(self, "_core_inner", inner)
        object.__setattr__(self, "_core_precision", precision)
        object.__setattr__(self, "_core_called", Called())
        object.__setattr__(self, "forward", _forward_of(wrapped, inner, precision, self._core_called))
        return self

    def __init__(self, wrapped: nn.Module, inner: nn.Module, precision: Precision) -> None:
        """Nothing: the user's module was initialized."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The forward pass. The wrapped module calls the hooks, which are the user's module's."""
        return self.forward(*args, **kwargs)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the user's module and of what wraps it."""
        self._core_wrapped.train(mode)
        return self

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the forward pass of the user's module, in place."""
        self._core_inner.compile(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        duplicate: Self = PreparedModule(*copy.deepcopy(_parts(self), memo))  # type: ignore[assignment]
        memo[id(self)] = duplicate
        return duplicate

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return PreparedModule, _parts(self)


class _Forward(partial[Any]):
    """A prepared module's ``forward``, with the signature of the user's."""

    inner: nn.Module
    """The user's module."""

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.inner.forward)


def _forward_of(wrapped: nn.Module, inner: nn.Module, precision: Precision, called: Called) -> Callable[..., Any]:
    is_bare = not needs_forward_context(precision)
    forward = _Forward(_forward, wrapped, called) if is_bare else _Forward(_in_context, wrapped, called, precision)
    forward.inner = inner
    return forward


def _forward(wrapped: nn.Module, called: Called, /, *args: Any, **kwargs: Any) -> Any:
    if torch.is_grad_enabled():
        called.by_loop = called.is_new = True
    return wrapped(*args, **kwargs)


def _in_context(wrapped: nn.Module, called: Called, precision: Precision, /, *args: Any, **kwargs: Any) -> Any:
    if torch.is_grad_enabled():
        called.by_loop = called.is_new = True
    with precision.forward_context():
        output = wrapped(*precision.convert_input(args), **precision.convert_input(kwargs))
    return precision.convert_output(output)


def _parts(model: PreparedModule) -> tuple[nn.Module, nn.Module, Precision]:
    return model._core_wrapped, model._core_inner, model._core_precision


def own_module(model: nn.Module, strategy: Strategy) -> nn.Module:
    """The user's own module in one that ``strategy`` has prepared."""
    return model._core_inner if isinstance(model, PreparedModule) else strategy.unwrap_module(model)


def strategy_module(model: nn.Module) -> nn.Module:
    """The module as the strategy set it up, in a prepared one, which :func:`torch.compile` may have wrapped."""
    model = _without_compilation(model)
    return model._core_wrapped if isinstance(model, PreparedModule) else model


def extract_model_from_parallel(model: nn.Module) -> nn.Module:
    """The user's own module in one that was prepared, compiled, or wrapped by torch for several devices."""
    while True:
        inner: Any
        if isinstance(model, PreparedModule):
            inner = model._core_inner
        elif isinstance(model, DistributedDataParallel | nn.DataParallel):
            inner = model.module
        else:
            inner, _ = uncompiled(model)
        if inner is None:
            return model
        model = inner


def called_of(model: nn.Module) -> Called:
    """The record of calls of a prepared module, which :func:`torch.compile` may have wrapped."""
    model = _without_compilation(model)
    return model._core_called if isinstance(model, PreparedModule) else Called()


def _without_compilation(model: nn.Module) -> nn.Module:
    if isinstance(model, PreparedModule):
        return model
    original, _ = uncompiled(model)
    return model if original is None else original  # not `or`: an empty container is false


def is_peft_model(model: Any) -> bool:
    """Whether ``model``, prepared or not, is a ``peft.PeftModel``; without that library no model is one."""
    peft: Any = sys.modules.get("peft")  # a model of a library that was not imported cannot exist
    while not hasattr(peft, "PeftModel") or not isinstance(model, peft.PeftModel):
        if peft is None or not hasattr(model, "module"):
            return False
        model = model.module  # what torch's own wrappers wrap
    return True


class PreparedOptimizer(OptimizerWrapper):
    """The user's optimizer, stepped by the strategy.

    Args:
        optimizer: The user's optimizer.
        strategy: What carries out the step.
    """

    own_attributes: ClassVar[tuple[str, ...]] = ("_core_strategy",)

    _core_strategy: Strategy

    def __init__(self, optimizer: Optimizer, strategy: Strategy) -> None:
        super().__init__(optimizer, strategy.make_optimizer_step(optimizer))
        object.__setattr__(self, "_core_strategy", strategy)

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last call was no step: scaled gradients were not finite, or the strategy collects more."""
        return not self._core_strategy.steps_taken(self._core_optimizer)


class AccumulatingOptimizer(PreparedOptimizer):
    """A prepared optimizer whose ``step`` and ``zero_grad`` act once in each window of micro-batches.

    Args:
        optimizer: The user's optimizer.
        strategy: What carries out the step.
        gate: Says whether a call acts.
    """

    own_attributes: ClassVar[tuple[str, ...]] = (*PreparedOptimizer.own_attributes, "_core_gate")

    _core_gate: OptimizerGate

    def __init__(self, optimizer: Optimizer, strategy: Strategy, gate: OptimizerGate) -> None:
        step = partial(gate.step, strategy.make_optimizer_step(optimizer))
        OptimizerWrapper.__init__(self, optimizer, step)
        object.__setattr__(self, "_core_strategy", strategy)
        object.__setattr__(self, "_core_gate", gate)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients, unless they wait for the step at the end of the window."""
        if self._core_gate.clears():
            self._core_optimizer.zero_grad(*args, **kwargs)


_SCHEDULERS_OWN = ("step", "_core_scheduler", "_core_call")


class PreparedScheduler(LRScheduler):
    """The user's scheduler, whose ``step`` acts if the optimizer has stepped: once a step, on any number of processes.

    It acts in the last micro-batch of an accumulation, unless the optimizer's step was skipped; and after a loop over
    the data, as for one step an epoch, in any case. It is an instance of the user's class, and shares all attributes
    but ``step`` with the user's scheduler.

    Args:
        scheduler: The user's scheduler.
        state: Says whether this micro-batch synchronizes gradients.
        strategy: Says how many steps the optimizer's last call was.
    """

    _core_scheduler: LRScheduler
    _core_call: tuple[Any, ...]

    def __init_subclass__(cls) -> None:
        """Not passed on: the user's class, which may register its subclasses, comes next."""

    def __new__(cls, scheduler: LRScheduler, state: GradientState, strategy: Strategy) -> Self:
        """An instance of the class and of the user's class."""
        self: Self = object.__new__(
            joined_class(PreparedScheduler, type(scheduler), _SCHEDULERS_OWN, "_core_scheduler")
        )
        object.__setattr__(self, "__dict__", scheduler.__dict__)
        object.__setattr__(self, "_core_scheduler", scheduler)
        object.__setattr__(self, "_core_call", (scheduler, state, strategy))
        object.__setattr__(self, "step", partial(_step, scheduler, state, strategy, [state.passes.num_ended]))
        return self

    def __init__(self, scheduler: LRScheduler, state: GradientState, strategy: Strategy) -> None:
        """Nothing: the user's scheduler was initialized."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return PreparedScheduler, self._core_call


def _step(
    scheduler: Any, state: GradientState, strategy: Strategy, ended: list[int], /, *args: Any, **kwargs: Any
) -> None:
    before, ended[0] = ended[0], state.passes.num_ended
    if state.is_after_loop(before) and not strategy.counts_steps:
        scheduler.step(*args, **kwargs)
        return
    if not state.sync_gradients:
        if state.adjust_scheduler:
            count_scheduler_call(scheduler)
        return
    for _ in range(steps_due(scheduler, strategy)):
        scheduler.step(*args, **kwargs)


def steps_due(scheduler: Any, strategy: Strategy) -> int:
    """How often ``scheduler`` is to step after the last call of its optimizer's step: 0 if that was skipped.

    Once in any case where each process steps alone: by what each has skipped, their learning rates would differ.
    """
    optimizer = getattr(scheduler, "optimizer", None)
    if optimizer is None or not (strategy.keeps_replicas_equal or strategy.counts_steps):
        return 1
    return strategy.steps_taken(unwrap_optimizer(optimizer))


def schedule_length(scheduler: Any) -> tuple[str, int] | None:
    """The number of steps that a scheduler was made for, and the argument that says it; ``None`` if it is unknown.

    Known are ``total_steps``, ``T_max`` and ``total_iters`` of torch's schedulers, and ``num_training_steps`` in the
    functions that transformers and diffusers make for ``LambdaLR``.
    """
    found = [(name, getattr(scheduler, name, None)) for name in ("total_steps", "T_max", "total_iters")]
    for function in getattr(scheduler, "lr_lambdas", ()):
        known = {**getattr(function, "keywords", {})}
        if inspect.isfunction(function):
            known |= inspect.getclosurevars(function).nonlocals
        found.append(("num_training_steps", known.get("num_training_steps")))
    return next(((name, value) for name, value in found if isinstance(value, int) and value > 0), None)


def warn_of_long_schedule(scheduler: Any, num_processes: int, share: float) -> None:
    """Warn if a run has taken fewer steps than ``scheduler`` was made for, as many as Accelerate's count explains.

    Args:
        scheduler: The user's scheduler.
        num_processes: As many times a step Accelerate steps it.
        share: How many steps of an epoch on one process are one on so many: fewer than ``num_processes`` where their
            last batches, or windows of batches, are not whole.
    """
    length, taken = schedule_length(scheduler), getattr(scheduler, "last_epoch", 0)
    if length is None or num_processes == 1 or not isinstance(taken, int) or taken < 1:
        return
    name, steps = length
    low = taken * (share if share > 1 else num_processes) - num_processes
    if taken < steps and low < steps < (taken + 1) * num_processes:
        warnings.warn(
            f"{type(scheduler).__name__}: {name}={steps}, but the run took {taken} steps: the schedule has not ended. "
            f"With {num_processes} processes Accelerate steps a scheduler {num_processes} times a step, torch-hal "
            f"steps it once. Pass {name}={taken}, the number of steps.",
            stacklevel=3,
        )
