"""An optimizer whose step the strategy carries out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from core.strategies.base import Strategy

__all__ = ["PreparedOptimizer"]


class PreparedOptimizer(Optimizer):
    """``optimizer``, stepped by the strategy; state and parameter groups are the optimizer's own.

    Only made where a strategy or precision has a say in the step: else the user keeps the optimizer as it is.

    Args:
        optimizer: The user's own.
        strategy: Who carries the step out.
    """

    def __init__(self, optimizer: Optimizer, strategy: Strategy) -> None:
        # Optimizer.__init__ is not called: state and groups stay in one place, the user's own optimizer.
        self.optimizer = optimizer
        self._strategy = strategy
        self._step = strategy.bound_optimizer_step(optimizer)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Let the strategy apply the gradients."""
        return self._step() if closure is None else self._strategy.optimizer_step(self.optimizer, closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The optimizer's own."""
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the optimizer's own."""
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """To the optimizer's own."""
        self.optimizer.add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_step"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._step = self._strategy.bound_optimizer_step(self.optimizer)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"
