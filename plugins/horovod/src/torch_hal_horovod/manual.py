"""Gradients of a loop that calls backward within the forward pass, reduced by Horovod."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from torch_hal.strategies import AveragedGradients, ParallelStrategy
from torch_hal_horovod.library import import_horovod
from torch_hal_horovod.options import HorovodOptions

__all__ = ["ReducedGradients"]


class ReducedGradients(AveragedGradients):
    """Gradients that Horovod reduces after each backward pass, with the strategy's options.

    Args:
        strategy: Horovod's.
        parameters: All parameters that backward may compute gradients of.
        backward: Computes gradients of a loss in this process alone.
        options: How gradients are sent and divided.
    """

    def __init__(
        self,
        strategy: ParallelStrategy,
        parameters: Sequence[nn.Parameter],
        backward: Callable[..., None],
        options: HorovodOptions,
    ) -> None:
        def run(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            backward(loss, *args, **kwargs)
            if options.sparse_as_dense:
                for parameter in parameters:
                    if parameter.grad is not None and parameter.grad.is_sparse:
                        parameter.grad = parameter.grad.to_dense()

        super().__init__(_Reduction(strategy, options), parameters, run, nullcontext)


class _Reduction:
    """Adds up gradients over the processes, which their mean is computed from."""

    def __init__(self, strategy: ParallelStrategy, options: HorovodOptions) -> None:
        self.name = strategy.name
        self._strategy, self._options = strategy, options

    @property
    def world_size(self) -> int:
        return self._strategy.world_size

    @property
    def root_device(self) -> torch.device:
        return self._strategy.root_device

    def all_reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        """By Horovod, compressed and divided before the sum as the options say."""
        if reduction != "mean":
            return self._strategy.all_reduce(tensor, reduction)
        hvd, options = import_horovod(), self._options
        factor = options.gradient_predivide_factor
        result: Tensor = hvd.allreduce(
            tensor,
            op=hvd.Sum,
            name="core.gradients",
            compression=getattr(hvd.Compression, options.compression),
            prescale_factor=1 / factor,
            postscale_factor=factor,
        )
        return result
