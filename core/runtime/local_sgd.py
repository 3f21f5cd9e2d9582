"""Local SGD: processes step on their own, and average their parameters now and then."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..errors import ConfigurationError, WrongTypeError
from ..hints.argument_checks import check_count
from ..logging import get_logger
from ..strategies.base import Strategy
from ..strategies.own_buffers import share_buffers
from .runtime import Runtime

logger = get_logger(__name__)


class LocalSGD:
    """A context in which gradients stay local, and parameters are averaged over processes every few steps.

    ::

        with LocalSGD(runtime, model, local_sgd_steps=8) as local_sgd:
            for inputs, targets in loader:
                ...
                optimizer.step()
                local_sgd.step()

    Parameters are also averaged at the end. With them, the processes get the buffers of process 0, such as the running
    means of batch norm, as in each forward pass outside. Every process takes the same number of steps.

    Under 16-mixed each process skips its own steps, but a prepared scheduler steps in all of them, so learning rates
    stay equal. The states of the optimizers, such as momentum, differ between processes. A checkpoint contains the
    state of process 0, and all processes resume with it. A checkpoint between two averages also contains the
    parameters of process 0 only, and a warning says so. The strategy ``diloco`` of torch-hal-parallel resumes exactly.

    Args:
        accelerator: The Runtime.
        model: A prepared model.
        local_sgd_steps: Optimizer steps between two averages.
        enabled: If false, nothing changes: gradients are averaged in each step.

    Raises:
        ConfigurationError: ``local_sgd_steps`` is not an integer ≥ 1, the strategy shards parameters or exchanges
            gradients itself, or :meth:`step` is called outside of the context.
        WrongTypeError: ``accelerator`` is not a Runtime.
    """

    def __init__(self, accelerator: Runtime, model: nn.Module, local_sgd_steps: int, enabled: bool = True) -> None:
        if not isinstance(accelerator, Runtime):
            raise WrongTypeError(
                f"LocalSGD: accelerator is an object of type {type(accelerator).__name__}: must be a Runtime. The "
                "Runtime comes first: LocalSGD(runtime, model, local_sgd_steps=8)."
            )
        check_count("local_sgd_steps", local_sgd_steps, 1)
        self.accelerator = accelerator
        self.model = model
        self.local_sgd_steps = local_sgd_steps
        self.num_steps = 0
        """Steps in this context."""
        self.enabled = enabled and accelerator.num_processes > 1
        """Whether parameters are averaged; false with one process."""
        self._stack = ExitStack()
        self._is_inside = False
        if self.enabled:
            self._check()

    def __enter__(self) -> Self:
        self.num_steps, self._is_inside = 0, True
        if self.enabled:
            self._stack.enter_context(self.accelerator.no_sync(self.model))
            strategy = self.accelerator.strategy
            self._stack.callback(setattr, strategy, "keeps_replicas_equal", strategy.keeps_replicas_equal)
            strategy.keeps_replicas_equal = False
            self._stack.callback(self.accelerator.register_save_state_pre_hook(self._warn_between_averages).remove)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._is_inside = False
        self._stack.close()
        if self.enabled and kind is None:
            self._average()

    def step(self) -> None:
        """Count an optimizer step; average the parameters if it is the last of ``local_sgd_steps``."""
        if not self._is_inside:
            raise ConfigurationError(
                "LocalSGD: step was called outside of its context, so gradients are exchanged in every step. Write: "
                "with LocalSGD(runtime, model, local_sgd_steps=8) as local_sgd: ..."
            )
        self.num_steps += 1
        if self.enabled and self.num_steps % self.local_sgd_steps == 0:
            self._average()

    def _warn_between_averages(self, models: object, weights: object, output_dir: object) -> None:
        if self.num_steps % self.local_sgd_steps:
            logger.warning_once(
                "save_state: LocalSGD has not averaged the parameters since they were changed, so the checkpoint has "
                "only process 0's. Save after a local_sgd.step() that makes num_steps a multiple of local_sgd_steps, "
                "or after the context"
            )

    @torch.no_grad()
    def _average(self) -> None:
        strategy = self.accelerator.strategy
        with strategy.assume_alike():
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.copy_(strategy.reduce(parameter.detach(), "mean"))
            share_buffers(strategy, self.model)

    def _check(self) -> None:
        strategy, name = self.accelerator.strategy, self.accelerator.plan.strategy.name
        if type(strategy).no_sync is Strategy.no_sync:
            raise ConfigurationError(
                f"LocalSGD: strategy={name!r} exchanges gradients in every step. Use strategy='ddp', or enabled=False."
            )
        if any(isinstance(parameter, DTensor) for parameter in self.model.parameters()):
            raise ConfigurationError(
                f"LocalSGD: strategy={name!r} shards the parameters, which each process needs whole. Use "
                "strategy='ddp', or enabled=False."
            )
