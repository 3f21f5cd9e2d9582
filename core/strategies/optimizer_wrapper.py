"""What a loop has in the place of the user's optimizer, where somebody else has a say in its step."""

from __future__ import annotations

from typing import Any, Self

from torch.optim import Optimizer

__all__ = ["OptimizerWrapper"]


class OptimizerWrapper(Optimizer):
    """``optimizer`` but for ``step``, which a subclass defines: state, parameter groups and all else are its own.

    Each has a class to itself, with a property for each name that the optimizer has when it is wrapped.
    ``__getattr__`` would do without, but a class that has one makes Python look longer for whatever is there, ``step``
    too: by microseconds a step.

    Args:
        optimizer: The user's own.
    """

    # In slots, they are names of the class, and no property for the like of the optimizer's takes their place.
    __slots__ = ("optimizer",)

    optimizer: Optimizer

    def __new__(cls, optimizer: Optimizer, *others: Any) -> Self:
        """An object of a class with the optimizer's names."""
        del others
        names = [name for name in dir(optimizer) if not hasattr(cls, name)]
        space = {"__module__": cls.__module__, **{name: _of_optimizer(name) for name in names}}
        return super().__new__(type(cls.__name__, (cls,), space))

    def __init__(self, optimizer: Optimizer) -> None:
        # Optimizer.__init__ is not called: state and groups stay in one place, the user's own optimizer.
        self.optimizer = optimizer

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"


def _of_optimizer(name: str) -> property:
    """The attribute ``name`` of the user's own optimizer."""

    def read(self: OptimizerWrapper) -> Any:
        return getattr(self.optimizer, name)

    def write(self: OptimizerWrapper, value: Any) -> None:
        setattr(self.optimizer, name, value)

    return property(read, write)
