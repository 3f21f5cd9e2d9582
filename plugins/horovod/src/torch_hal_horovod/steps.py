"""What happens around an optimizer's step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from torch_hal_horovod.library import import_horovod

__all__ = ["AdasumStep", "ScaledLearningRate"]


class ScaledLearningRate:
    """Lets ``optimizer`` step with the learning rates of all its groups times a factor, which they do not keep.

    So schedulers, whether they multiply a rate or compute it anew, and checkpoints know the rate of one process only.

    Args:
        optimizer: Whose rates.
        factor: Gives the factor, at each step.
    """

    def __init__(self, optimizer: Optimizer, factor: Callable[[], int]) -> None:
        self._factor = factor
        self._own: list[Any] = []
        self._hooks = (
            optimizer.register_step_pre_hook(self._scale),
            optimizer.register_step_post_hook(self._restore),
        )

    def release(self) -> None:
        """Take the hooks away."""
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
    """Each process takes a step of its own, and Horovod combines by Adasum what they have changed.

    Source: Maleki et al., Scaling Distributed Training with Adaptive Summation, MLSys 2021.

    Args:
        optimizer: Whose parameters.
        compression: What changes are sent as, a name of ``horovod.torch.Compression``.
        number: Of the optimizer, the same in each process.
    """

    def __init__(self, optimizer: Optimizer, compression: str, number: int) -> None:
        self._optimizer = optimizer
        self._compression = compression
        self._number = number

    def take(self, step: Callable[[], Any]) -> Any:
        """Call ``step``, which is to step the optimizer, and combine; returns what it returns."""
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
