"""The optimizer as a loop has it: stepped by the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from torch.optim import Optimizer

from core.errors import ConfigurationError

if TYPE_CHECKING:
    from torch_hal_deepspeed.engine import Engine

__all__ = ["EngineOptimizer"]


class EngineOptimizer(Optimizer):
    """``optimizer``, stepped by ``engine``; all else that it has, state and parameter groups among it, is its own.

    Each has a class to itself, with a property for each of those. ``__getattr__`` would do without, but a class that
    has one makes Python look longer for whatever is there, ``step`` too: by microseconds, after a step of the engine's.

    Args:
        optimizer: The user's own.
        engine: Who has taken its parameters.
    """

    def __new__(cls, optimizer: Optimizer, engine: Engine) -> Self:
        """An object of a class with the optimizer's names."""
        del engine
        names = [name for name in dir(optimizer) if not hasattr(cls, name)]
        own = type(cls.__name__, (cls,), {name: _of_optimizer(name) for name in names})
        return super().__new__(own)

    def __init__(self, optimizer: Optimizer, engine: Engine) -> None:
        # Optimizer.__init__ is not called: state and groups stay in one place, the user's own optimizer.
        self.optimizer = optimizer
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

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own: of this process's part."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the optimizer's own."""
        self.optimizer.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"


def _of_optimizer(name: str) -> property:
    """The attribute ``name`` of the user's own optimizer."""

    def read(self: EngineOptimizer) -> Any:
        return getattr(self.optimizer, name)

    def write(self: EngineOptimizer, value: Any) -> None:
        setattr(self.optimizer, name, value)

    return property(read, write)
