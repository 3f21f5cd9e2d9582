"""Changes of an optimizer's step: a scaled learning rate, and Adasum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from torch_hal_horovod.library import import_horovod

__all__ = ["AdasumStep", "ScaledLearningRate"]


class ScaledLearningRate:
    """Multiplies the learning rates of all groups of ``optimizer`` by a factor during its step only.

    So schedulers, whether they multiply a rate or compute a new one, and checkpoints know the rate of one process only.

    Args:
        optimizer: The optimizer.
        factor: Returns the factor; called at each step.
    """

    def __init__(self, optimizer: Optimizer, factor: Callable[[], int]) -> None:
        self._factor = factor
        self._own: list[Any] = []
        self._hooks = (
            optimizer.register_step_pre_hook(self._scale),
            optimizer.register_step_post_hook(self._restore),
        )

    def release(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _scale(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        self._own = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, self._own, strict=True):
            group["lr"] = rate * self._factor()

    def _restore(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        for group, rate in zip(optimizer.param_groups, self._own, strict=True):
            group["lr"] = rate


class AdasumStep:
    """Each process does its own step, and Horovod combines the changes with Adasum.

    Source: Maleki et al., Scaling Distributed Training with Adaptive Summation, MLSys 2021.

    Args:
        optimizer: The optimizer.
        compression: A name in ``horovod.torch.Compression``, for sending the changes.
        number: Number of the optimizer, equal in all processes.
    """

    def __init__(self, optimizer: Optimizer, compression: str, number: int) -> None:
        self._optimizer = optimizer
        self._compression = compression
        self._number = number

    def take(self, step: Callable[[], Any]) -> Any:
        """Call ``step``, which steps the optimizer, combine the changes, and return what ``step`` returned."""
        hvd = import_horovod()
        parameters = [
            parameter
            for group in self._optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        before = [parameter.detach().clone() for parameter in parameters]
        result = step()
        with torch.no_grad():
            for position, (parameter, start) in enumerate(zip(parameters, before, strict=True)):
                combined = hvd.allreduce(
                    parameter.detach() - start,
                    op=hvd.Adasum,
                    name=f"core.adasum.{self._number}.{position}",
                    compression=getattr(hvd.Compression, self._compression),
                )
                parameter.copy_(start + combined)
        return result
