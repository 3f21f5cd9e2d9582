"""The optimizers of a fit as a Module uses them: their steps, toggling, clipping, and manual backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...errors import ConfigurationError, WrongTypeError
from ...runtime.checks import used_by_with
from ...strategies.base import Strategy
from ...strategies.manual_gradients import ManualGradients
from ...strategies.wrapping import OptimizerWrapper, unwrap_optimizer
from ..run_context import RunContext


class ControlledOptimizer(OptimizerWrapper):
    """An optimizer of a fit, as :meth:`core.Module.optimizers` returns it.

    Args:
        optimizer: The optimizer as the strategy set it up.
        step: Called as ``step(closure=None)``.
        controls: Of the fit.
    """

    own_attributes: ClassVar[tuple[str, ...]] = ("_core_controls",)

    _core_controls: Controls

    def __init__(self, optimizer: Optimizer, step: Callable[..., Any], controls: Controls) -> None:
        OptimizerWrapper.__init__(self, optimizer, step)  # the optimizer's class may be another wrapper
        object.__setattr__(self, "_core_controls", controls)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer whose ``step`` is its own only."""
        return self._core_optimizer

    @used_by_with("optimizer.toggle_model()")
    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """A context in which only this optimizer's parameters require gradients.

        Args:
            sync_grad: Whether gradients are reduced over processes; turn it off to accumulate them.
        """
        controls = self._core_controls
        controls.toggle(self)
        try:
            with nullcontext() if sync_grad else controls.no_sync():
                yield
        finally:
            controls.untoggle(self)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self._core_optimizer.zero_grad(set_to_none)


class Controls:
    """Implements a Module's ``optimizers``, ``manual_backward``, ``toggle_optimizer`` and ``clip_gradients``."""

    def __init__(self, context: RunContext, optimizers: Sequence[Optimizer], module: nn.Module) -> None:
        self._context, self._module = context, module
        self.strategy: Strategy = context.runtime.strategy
        self.is_manual = not context.module.automatic_optimization
        self._gradients: ManualGradients | None = None
        self._hooks: dict[str, tuple[Callable[..., Any], ...]] = {}
        self._backwards = 0
        """The number of backward passes."""
        self._stepped_at = [0] * len(optimizers)
        """For each optimizer, the number of backward passes before its last step."""
        self._plain = tuple(optimizers)
        self.bind_steps()
        self.automatic_step: Callable[..., Any] | None = None
        """Steps the optimizer of automatic optimization; called as ``automatic_step(closure=None)``."""
        self._required: dict[int, tuple[nn.Parameter, bool]] = {}
        """What ``requires_grad`` was before an optimizer was toggled."""
        self._toggled: int | None = None
        self._unreduced = set[int | None]()
        """The optimizers that were toggled in backward passes whose gradients no later one has reduced."""
        if self.is_manual:
            self._gradients = self.strategy.manual_gradients(module)
        self.bind_hooks()

    @cached_property
    def optimizers(self) -> tuple[ControlledOptimizer, ...]:
        """What :meth:`core.Module.optimizers` returns; made when it is asked for, since it refers back to this."""
        return tuple(
            ControlledOptimizer(optimizer, partial(self._step, index), self)
            for index, optimizer in enumerate(self._plain)
        )

    def bind_steps(self) -> None:
        """Find the optimizers' steps; a scheduler that was created since has replaced them."""
        self._steps = [self.strategy.make_optimizer_step(optimizer) for optimizer in self._plain]

    def bind_hooks(self) -> None:
        """Find the hooks that are called in a step; the callbacks may have changed."""
        names = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")
        self._hooks = {name: self._context.hooks.bind(name) for name in names}

    # -- steps ---------------------------------------------------------------------------------------------------

    def _step(self, index: int, closure: Callable[[], Any] | None = None) -> Any:
        if not self.is_manual:
            if self.automatic_step is None:
                raise ConfigurationError(
                    "optimizer.step: the Trainer steps the optimizer. Override Module.optimizer_step to change this, "
                    "or set self.automatic_optimization = False to step it yourself."
                )
            return self.automatic_step(closure)
        if closure is None and index in self._unreduced:
            raise ConfigurationError(
                "optimizer.step: its gradients are of backward passes in toggle_model(sync_grad=False) alone, so each "
                "process would train another model. Set sync_grad=True for the last manual_backward before the step."
            )
        optimizer, hooks = self._plain[index], self._hooks["on_before_optimizer_step"]
        if hooks and closure is not None:
            closure = self._closure_with_hooks(closure, optimizer)
        elif hooks:
            self.call_before_step(optimizer)
        result = self._steps[index]() if closure is None else self._steps[index](closure)
        torch.clear_autocast_cache()  # or what is left of training_step computes with the weights before the step
        self._stepped_at[index] = self._backwards
        progress, strategy = self._context.progress, self.strategy
        progress.step = strategy.global_steps() if strategy.counts_steps else progress.step + 1
        return result

    def call_before_step(self, optimizer: Optimizer) -> None:
        """Unscale the gradients, and call the hooks before an optimizer's step."""
        self.strategy.unscale_gradients(optimizer)
        for hook in self._hooks["on_before_optimizer_step"]:
            hook(optimizer)

    def _closure_with_hooks(self, closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
        def run() -> Any:
            loss = closure()
            self.call_before_step(optimizer)
            return loss

        return run

    # -- backward ------------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients in manual optimization.

        Raises:
            ConfigurationError: The Trainer calls backward.
        """
        if self._gradients is None:
            raise ConfigurationError(
                "manual_backward: the Trainer calls backward itself. Set self.automatic_optimization = False in "
                "__init__, or return the loss from training_step."
            )
        for hook in self._hooks["on_before_backward"]:
            hook(loss)
        progress = self._context.progress
        progress.computed = progress.batch
        self._gradients.backward(loss, *args, **kwargs)
        if self._gradients.has_unreduced:
            self._unreduced.add(self._toggled)
        elif self._unreduced:
            self._unreduced.clear()
        torch.clear_autocast_cache()  # the step of a closure changes the weights before it calls the closure again
        self._backwards += 1
        for hook in self._hooks["on_after_backward"]:
            hook()

    def forward_context(self) -> AbstractContextManager[Any]:
        """The context of a forward pass in manual optimization."""
        assert self._gradients is not None
        return self._gradients.forward_context()

    def no_sync(self) -> AbstractContextManager[Any]:
        """A context in which gradients are not reduced."""
        return self.strategy.no_sync(self._module) if self._gradients is None else self._gradients.no_sync()

    @property
    def has_open_gradients(self) -> bool:
        """Whether an optimizer has gradients of a manual backward that it was not stepped with."""
        gradients = self._gradients
        return gradients is not None and any(
            stepped_at < self._backwards and gradients.holds(_parameters(optimizer))
            for stepped_at, optimizer in zip(self._stepped_at, self._plain, strict=True)
        )

    @property
    def has_unreduced(self) -> bool:
        """Whether the next backward pass is to reduce gradients of earlier ones too."""
        return self._gradients is not None and self._gradients.has_unreduced

    def load_open_gradients(self, has_unreduced: bool) -> None:
        """Note that the module has open gradients, which were loaded, and :attr:`has_unreduced` of the run before."""
        if self._gradients is not None:
            self._backwards, self._gradients.has_unreduced = 1, has_unreduced

    # -- toggling ------------------------------------------------------------------------------------------------

    def toggle(self, optimizer: Optimizer) -> None:
        """See :meth:`core.Module.toggle_optimizer`."""
        index = self._index_of(optimizer, "toggle_optimizer")
        chosen = self._plain[index]
        self.restore()
        self._toggled = index
        own = {id(parameter) for parameter in _parameters(chosen)}
        for other in self._plain:
            for parameter in _parameters(other):
                if id(parameter) not in own and id(parameter) not in self._required:
                    self._required[id(parameter)] = parameter, parameter.requires_grad
                    parameter.requires_grad = False

    def untoggle(self, optimizer: Optimizer) -> None:
        """See :meth:`core.Module.untoggle_optimizer`."""
        self._index_of(optimizer, "untoggle_optimizer")
        self.restore()

    def requires_grad(self, parameter: nn.Parameter) -> bool:
        """Whether ``parameter`` requires gradients when no optimizer is toggled."""
        return self._required.get(id(parameter), (parameter, parameter.requires_grad))[1]

    def restore(self) -> None:
        """Let no optimizer be toggled."""
        for parameter, required in self._required.values():
            parameter.requires_grad = required
        self._required.clear()
        self._toggled = None

    # -- clipping ------------------------------------------------------------------------------------------------

    def clip(self, optimizer: Optimizer, value: float | None, algorithm: str | None) -> None:
        """See :meth:`core.Module.clip_gradients`."""
        settings = self._context.settings
        for name, given in (("gradient_clip_val", value), ("gradient_clip_algorithm", algorithm)):
            of_trainer = getattr(settings, name)
            if settings.gradient_clip_val is not None and given is not None and given != of_trainer:
                raise ConfigurationError(
                    f"clip_gradients: {name}={given!r}, but the Trainer has {name}={of_trainer!r}. Set one of the two."
                )
        chosen = settings.gradient_clip_val if value is None else value
        if not chosen:
            return
        method = settings.gradient_clip_algorithm if algorithm is None else algorithm
        self.strategy.check_clip_algorithm(method, "gradient_clip_algorithm")
        plain = self._plain[self._index_of(optimizer, "clip_gradients")]
        self.strategy.unscale_gradients(plain)
        self.strategy.clip_gradients(_parameters(plain), chosen, method)

    def _index_of(self, optimizer: Any, name: str) -> int:
        plain = unwrap_optimizer(optimizer) if isinstance(optimizer, Optimizer) else optimizer
        for index, one in enumerate(self._plain):
            if one is plain or unwrap_optimizer(one) is plain:
                return index
        raise WrongTypeError(
            f"{name}: {optimizer!r} is not an optimizer of this fit. Pass one of those that self.optimizers() returns."
        )


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
