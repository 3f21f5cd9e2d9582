"""The user's optimizer with another ``step``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, Self

from torch.optim import Optimizer

from .wrapper_class import joined_class

__all__ = ["OptimizerWrapper", "unwrap_optimizer"]


class OptimizerWrapper(Optimizer):
    """The user's optimizer with another ``step``, for engines that step by themselves.

    The wrapper is an instance of the optimizer's class, so ``isinstance(wrapper, torch.optim.Adam)`` holds, and has the
    same attributes: both objects share one ``__dict__``. Only ``step`` is separate. Setting ``wrapper.step``, as
    learning rate schedulers do, leaves ``optimizer.step`` alone and vice versa.

    Forwarding to the optimizer instead would need ``__getattr__``, which slows down every step, or a class for each
    optimizer, and ``isinstance`` would fail. Replacing ``optimizer.step`` would change the user's object, whose own
    step the engine calls.

    A subclass may override all methods but ``step``.

    Args:
        optimizer: The user's optimizer.
        step: Called as ``wrapper.step(closure=None)``. It must not refer to the wrapper, which would be a reference
            cycle that keeps parameters alive.
    """

    own_attributes: ClassVar[tuple[str, ...]] = ()
    """Attributes that a subclass keeps for itself, as in ``__slots__``. All others are shared with the optimizer."""

    _core_optimizer: Optimizer
    _core_call: tuple[type[OptimizerWrapper], tuple[Any, ...], dict[str, Any]]
    """The class and the arguments that the wrapper was made with, for copies."""

    def __init_subclass__(cls) -> None:
        # Not passed on: the user's class, which may register its subclasses, comes next.
        if isinstance(cls.__dict__.get("step"), FunctionType):
            raise TypeError(
                f"class {cls.__name__} defines step, which has no effect in an OptimizerWrapper. Pass the function to "
                "OptimizerWrapper.__init__(optimizer, step) instead."
            )

    def __new__(cls, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Self:
        """An instance of ``cls`` and of the optimizer's class."""
        # The user's class may override __new__, __init__ and __setattr__: none of them runs for a wrapper.
        self: Self = object.__new__(_joined_class(cls, type(optimizer)))
        object.__setattr__(self, "__dict__", optimizer.__dict__)
        object.__setattr__(self, "_core_optimizer", optimizer)
        object.__setattr__(self, "_core_call", (cls, (optimizer, *args), kwargs))
        return self

    def __init__(self, optimizer: Optimizer, step: Callable[..., Any]) -> None:
        del optimizer
        object.__setattr__(self, "step", _Step(step))

    def _patch_step_function(self) -> None:
        """Nothing: torch adds its step hooks to a class here, and the class of the optimizer has them."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        duplicate: Self = _remake(*copy.deepcopy(self._core_call, memo))
        return duplicate

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        del protocol
        return _remake, self._core_call


def unwrap_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside an :class:`OptimizerWrapper`; any other optimizer is returned as it is."""
    return optimizer._core_optimizer if isinstance(optimizer, OptimizerWrapper) else optimizer


class _Step(partial[Any]):
    """What a wrapper has as ``step``. It looks like a bound method to schedulers, which bind ``__func__`` again."""

    @property
    def __func__(self) -> Any:
        return staticmethod(self)


def _joined_class(wrapper: type[OptimizerWrapper], wrapped: type[Optimizer]) -> Any:
    """The class of all wrappers of one class around optimizers of one class."""

    def new(cls: type, *args: Any, **kwargs: Any) -> Optimizer:
        """``type(wrapper)(parameters, ...)`` makes another optimizer of the user's class."""
        del cls
        return wrapped(*args, **kwargs)

    namespace = {
        "__new__": new,
        "__init__": wrapper.__init__,
        "__module__": wrapper.__module__,
        "__qualname__": f"{wrapper.__qualname__}[{wrapped.__qualname__}]",
    }
    own = ("step", "_core_optimizer", "_core_call", *wrapper.own_attributes)
    return joined_class(wrapper, wrapped, own, "_core_optimizer", namespace)


def _remake(cls: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return cls(*args, **kwargs)
