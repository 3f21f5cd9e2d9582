"""An optimizer whose step the strategy carries out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from core.strategies.base import Strategy
from core.strategies.optimizer_wrapper import OptimizerWrapper

__all__ = ["PreparedOptimizer"]


class PreparedOptimizer(OptimizerWrapper):
    """``optimizer``, stepped by the strategy.

    Only made where a strategy or precision has a say in the step: else the user keeps the optimizer as it is.

    Args:
        optimizer: The user's own.
        strategy: Who carries the step out.
    """

    __slots__ = ("_step", "_strategy")

    def __init__(self, optimizer: Optimizer, strategy: Strategy) -> None:
        super().__init__(optimizer)
        self._strategy = strategy
        self._step = strategy.bound_optimizer_step(optimizer)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Let the strategy apply the gradients."""
        return self._step() if closure is None else self._strategy.optimizer_step(self.optimizer, closure)

    def __reduce__(self) -> tuple[Any, ...]:
        return PreparedOptimizer, (self.optimizer, self._strategy)
