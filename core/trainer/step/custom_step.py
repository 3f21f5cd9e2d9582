"""The training step where the user overrides parts of it, takes the steps, or has no optimizer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...errors import ConfigurationError, quoted
from ...precisions.base import Precision
from ...strategies.base import Strategy
from ...strategies.training_step import StepParts, TrainingStep, TrainingStepOptions, holds_gradients
from ...strategies.wrapping import unwrap_optimizer
from ..module.hooks import overridden
from ..module.module import CUSTOM_STEP, Module
from ..run_context import RunContext
from .configure_optimizers import needs_closure, takes_closure
from .optimizer_controls import Controls

logger = logging.getLogger(__name__)

STEP_HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
"""The hooks within a training step."""


def compose_step(
    context: RunContext,
    controls: Controls,
    forward: Callable[[Any, int], Tensor | None],
    options: TrainingStepOptions,
) -> TrainingStep:
    """The strategy's step, with what the user overrides.

    Raises:
        ConfigurationError: The strategy runs the whole step by itself, or computes gradients by itself and ``backward``
            is overridden, or the optimizer's closure cannot be used.
    """
    strategy, optimizer = context.runtime.strategy, options.optimizer
    own = unwrap_optimizer(optimizer)
    parts = [name for name in CUSTOM_STEP if overridden(context.module, Module, name) is not None]
    parts += [name for name in STEP_HOOKS if context.hooks.bind(name)]
    passes_closure = _passes_closure(own, optimizer, strategy)
    if needs_closure(own) and options.accumulate > 1:
        raise ConfigurationError(
            f"accumulate_grad_batches={options.accumulate}: {type(own).__name__} evaluates the loss several times in a "
            "step, which cannot be combined with accumulation. Set accumulate_grad_batches=1."
        )
    if not (parts or passes_closure):
        return strategy.training_step(forward, options)
    if "backward" in parts:
        _check_backward(strategy)
    taken: list[CustomStep] = []

    def customize(given: StepParts) -> TrainingStep:
        step = CustomStep(context, controls, given, options, passes_closure)
        taken.append(step)
        controls.automatic_step = step.step_optimizer
        return step

    step = strategy.training_step(forward, attrs.evolve(options, customize=customize))
    if not taken and (parts or needs_closure(own)):
        what = quoted(parts) if parts else f"the closure of {type(own).__name__}"
        raise ConfigurationError(
            f"strategy={strategy.name!r} runs the whole training step by itself, so {what} would not be used. Remove "
            "it, or use another strategy, such as 'auto'."
        )
    return step


class CustomStep:
    """One batch, with the user's own parts.

    Backward runs within a closure that the optimizer's step calls, as optimizers such as LBFGS need it: forward, clear
    the gradients, backward.

    Args:
        context: Of the fit.
        controls: Of the fit.
        parts: What the strategy contributes.
        options: What the step does.
        passes_closure: Whether the optimizer itself calls the closure.
    """

    def __init__(
        self,
        context: RunContext,
        controls: Controls,
        parts: StepParts,
        options: TrainingStepOptions,
        passes_closure: bool,
    ) -> None:
        module, hooks = context.module, context.hooks
        self._context, self._controls, self._parts, self._options = context, controls, parts, options
        self._optimizer, self._accumulate = options.optimizer, options.accumulate
        self._passes_closure = passes_closure
        self._zero_grad_hooks, self._before_backward, self._after_backward, self._before_step = (
            hooks.bind(name) for name in STEP_HOOKS
        )
        self._own_step = overridden(module, Module, "optimizer_step")
        self._own_zero = overridden(module, Module, "optimizer_zero_grad")
        self._own_clipping = overridden(module, Module, "configure_gradient_clipping")
        own_backward = overridden(module, Module, "backward")
        self._backward = parts.backward if own_backward is None else self._scaled(own_backward)
        self._batch: Any = None
        self._batch_idx = 0
        self._is_first = True
        """Whether the running batch is the first of its accumulation."""
        self._has_gradients = False
        self._loss: Tensor | None = None
        self._has_run = False
        """Whether the closure has run for the running batch."""

    def _scaled(self, backward: Callable[..., Any]) -> Callable[[Tensor], object]:
        precision = self._controls.strategy.precision
        return lambda loss: backward(precision.scale_loss(loss))

    def __call__(self, batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
        """See :data:`core.strategies.TrainingStep`."""
        self._batch, self._batch_idx, self._has_run = batch, batch_idx, False
        self._is_first = not self._context.progress.is_accumulating
        try:
            if not is_step_end:
                with self._parts.no_sync(self._options.module):
                    self._closure()
            elif self._own_step is not None:
                epoch = self._context.progress.epoch
                self._own_step(epoch, batch_idx, self._controls.optimizers[0], self._closure)
                if not self._has_run:
                    raise ConfigurationError(
                        "optimizer_step: the closure was not called, so there was no training step. Pass it on with "
                        "optimizer.step(closure=optimizer_closure), or call optimizer_closure()."
                    )
            else:
                self.step_optimizer(self._closure)
            return self._loss
        finally:
            self._batch = self._loss = None

    def _closure(self) -> Tensor | None:
        """Forward, clear the gradients, backward."""
        self._has_run = True
        loss = self._loss = self._parts.forward(self._batch, self._batch_idx)
        if self._is_first:
            self._clear()
        if loss is not None:
            scaled = loss / self._accumulate if self._accumulate > 1 else loss
            for hook in self._before_backward:
                hook(scaled)
            self._backward(scaled)
            for hook in self._after_backward:
                hook()
            self._has_gradients = True
        return loss

    def _clear(self) -> None:
        for hook in self._zero_grad_hooks:
            hook(self._optimizer)
        if self._own_zero is None:
            self._optimizer.zero_grad()
        else:
            self._own_zero(self._context.progress.epoch, self._batch_idx, self._optimizer)

    def step_optimizer(self, closure: Callable[[], Any] | None = None) -> Any:
        """What the ``step`` of the optimizer does that ``optimizer_step`` gets."""
        if closure is not None and self._passes_closure:

            @torch.enable_grad()  # the step of an optimizer runs without gradients
            def closure_with_hooks() -> Any:
                loss = closure()
                self._prepare_gradients()
                return loss

            self._has_gradients = False
            return self._parts.optimizer_step(closure_with_hooks)
        result = closure() if closure is not None else None
        if self._has_gradients or (not self._is_first and holds_gradients(self._optimizer)):
            self._has_gradients = False
            self._prepare_gradients()
            self._parts.optimizer_step()
        return result

    def _prepare_gradients(self) -> None:
        """Unscale, call the hooks, clip."""
        options = self._options
        if self._before_step or self._own_clipping is not None:
            self._controls.strategy.unscale_gradients(self._optimizer)
        for hook in self._before_step:
            hook(self._optimizer)
        if self._own_clipping is not None:
            settings = self._context.settings
            algorithm = None if settings.gradient_clip_val is None else settings.gradient_clip_algorithm
            self._own_clipping(self._optimizer, settings.gradient_clip_val, algorithm)
        elif options.clip_value is not None:
            self._parts.clip_gradients(options.clip_value, options.clip_algorithm)


def _passes_closure(own: Optimizer, optimizer: Optimizer, strategy: Strategy) -> bool:
    """Whether the optimizer itself must call the closure: it needs it, or its class may use it several times."""
    if needs_closure(own):
        return True
    is_known = type(own).__module__.startswith(("torch.optim.", "torch.distributed."))
    is_plain = optimizer is own and not strategy.precision.scales_loss and strategy.uses_native_step()
    return not is_known and is_plain and takes_closure(own)


def _check_backward(strategy: Strategy) -> None:
    kind, precision = type(strategy), strategy.precision
    scales = precision.overrides("backward") and type(precision).scale_loss is Precision.scale_loss
    if kind.backward is not Strategy.backward or kind.make_backward is not Strategy.make_backward or scales:
        raise ConfigurationError(
            f"module: overrides 'backward', but strategy={strategy.name!r} with precision={precision.name!r} computes "
            "gradients by itself. Remove it, or use another strategy, such as 'ddp'."
        )


def manual_step(model: nn.Module, module: Module, controls: Controls, outputs: list[Any]) -> TrainingStep:
    """The step of a Module that calls backward and steps its optimizers itself.

    Args:
        model: The module's ``training_step`` as the forward pass that the strategy wraps.
        module: The user's Module.
        controls: Of the fit.
        outputs: Receives what the step returned, which may be anything.
    """
    end = overridden(module, Module, "training_step_end")

    def step(batch: Any, batch_idx: int, is_step_end: bool) -> None:
        with controls.forward_context():
            output = model(batch, batch_idx)
        if end is not None:
            output = end(output)
        if output is not None:
            outputs[:] = [output]

    return step


def step_without_optimizer(
    forward: Callable[[Any, int], Tensor | None], no_sync: Callable[[], AbstractContextManager[Any]]
) -> TrainingStep:
    """The forward pass alone; nothing is trained, which a warning says."""
    logger.warning(
        "configure_optimizers: returned None, so nothing is optimized: training_step is called, backward is not. "
        "Return an optimizer to train"
    )

    def step(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
        with no_sync():
            return forward(batch, batch_idx)

    return step
