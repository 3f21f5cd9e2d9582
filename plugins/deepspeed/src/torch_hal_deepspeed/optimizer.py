"""The optimizer as a loop has it: stepped by the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from core.errors import ConfigurationError
from core.strategies import OptimizerWrapper

if TYPE_CHECKING:
    from torch_hal_deepspeed.engine import Engine

__all__ = ["EngineOptimizer"]


class EngineOptimizer(OptimizerWrapper):
    """``optimizer``, stepped by ``engine``; its state is of this process's part.

    Args:
        optimizer: The user's own.
        engine: Who has taken its parameters.
    """

    __slots__ = ("engine",)

    def __init__(self, optimizer: Optimizer, engine: Engine) -> None:
        super().__init__(optimizer)
        self.engine = engine

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Let the engine average what is not averaged yet, clip, step, and clear the gradients.

        Raises:
            ConfigurationError: A closure is given.
        """
        if closure is not None:
            raise ConfigurationError(
                f"optimizer {type(self.optimizer).__name__}: step with a closure, which DeepSpeed's engine cannot run. "
                "Valid: step()."
            )
        engine = self.engine
        engine.has_gradients = False
        engine.engine.step()
        if engine.clips_once:
            engine.restore_clipping()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing after a step, which clears the gradients itself.

        Raises:
            ConfigurationError: There are some that no step has taken: the engine has divided them, and drops none.
        """
        del set_to_none
        if self.engine.has_gradients:
            raise ConfigurationError(
                "zero_grad: there are gradients that no step has taken, and DeepSpeed's engine cannot drop them. "
                "Valid: zero_grad after step, or before backward."
            )
