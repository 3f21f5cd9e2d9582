"""Adam whose momentum is averaged in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from torch_hal.errors import ConfigurationError
from torch_hal_bagua.algorithms.base import UNSCALED_PRECISIONS, Algorithm, GradientBucket
from torch_hal_bagua.algorithms.bytegrad import compressed_all_reduce
from torch_hal_bagua.communication import Communicator, all_reduce
from torch_hal_bagua.optimizer import QAdamOptimizer
from torch_hal_bagua.options import boolean

__all__ = ["QAdam"]


class QAdam(Algorithm):
    """Averages gradients while :class:`QAdamOptimizer` warms up; after that its momentum, sent as bytes.

    After the warm-up, ``grad`` holds the averaged momentum at the end of backward: gradient clipping limits the
    momentum that the step uses, not the stored one.

    Args:
        hierarchical: Average within each machine in full precision first, then over one process of each in bytes.
    """

    name = "qadam"
    compresses = True
    precisions = tuple(name for name in UNSCALED_PRECISIONS if name != "16-true")
    """The momentum contains gradients of several steps, whose losses may have had different scales; and squares of
    gradients underflow in float16."""

    def __init__(self, hierarchical: bool = True) -> None:
        self.hierarchical = boolean("hierarchical", hierarchical)
        self._optimizer: QAdamOptimizer | None = None
        self._groups: dict[Tensor, dict[str, Any]] = {}
        """The parameter group of each parameter."""
        self._advanced: dict[Tensor, int] = {}
        """The step at which each parameter's momentum was last averaged."""

    @property
    def reduces_itself(self) -> bool:
        """Always true."""
        return True

    def take_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """See :meth:`Algorithm.take_optimizers`."""
        for optimizer in optimizers:
            if not isinstance(optimizer, QAdamOptimizer):
                raise ConfigurationError(
                    f"algorithm='qadam' does not support optimizer {type(optimizer).__name__}, whose momentum cannot "
                    "be averaged. Use torch_hal_bagua.QAdamOptimizer."
                )
            if self._optimizer not in (None, optimizer):
                raise ConfigurationError(
                    "algorithm='qadam' supports one optimizer, and a second one was prepared. Use one QAdamOptimizer "
                    "with several parameter groups."
                )
            optimizer.receives_momentum = True
            self._optimizer = optimizer
            self._groups = {p: group for group in optimizer.param_groups for p in group["params"]}

    def disconnect(self) -> None:
        """Release the run; the optimizer updates its momentum itself again."""
        super().disconnect()
        if self._optimizer is not None:
            self._optimizer.receives_momentum = False
        self._optimizer = None
        self._groups.clear()
        self._advanced.clear()

    def reduce(self, bucket: GradientBucket, communicator: Communicator) -> None:
        """See :meth:`Algorithm.reduce`."""
        optimizer = self._optimizer
        if optimizer is None or optimizer.is_warming_up:
            communicator.among_peers(bucket.values, partial(all_reduce, average=True))
            return
        pairs = zip(bucket.parameters, bucket.gradients, strict=True)
        own = [(parameter, gradient) for parameter, gradient in pairs if parameter in self._groups]
        for parameter, gradient in own:
            self._begin_momentum(parameter, optimizer.steps)
            optimizer.advance_momentum(parameter, gradient, self._groups[parameter])
        communicator.among_peers(bucket.values, partial(compressed_all_reduce, average=True))
        for parameter, gradient in own:
            optimizer.moments(parameter)[0].copy_(gradient)

    def _begin_momentum(self, parameter: Tensor, steps: int) -> None:
        if self._advanced.get(parameter) == steps:
            raise ConfigurationError(
                "algorithm='qadam': backward was called twice before the optimizer's step, without no_sync. Use "
                "no_sync(model) for all but the last backward, or the Trainer's accumulate_grad_batches."
            )
        self._advanced[parameter] = steps
