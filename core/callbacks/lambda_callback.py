"""A callback made from functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ConfigurationError, WrongTypeError, nearest, quoted
from .base import HOOKS, Callback


class LambdaCallback(Callback):
    """Calls a function at each given hook, with the hook's arguments.

    ::

        LambdaCallback(on_train_epoch_end=lambda trainer, module: print(trainer.callback_metrics))

    Args:
        **hooks: By the name of a hook, the function. ``None`` is ignored.

    Raises:
        ConfigurationError: There is no such hook, or nothing is given.
        WrongTypeError: A value is not callable.
    """

    def __init__(self, **hooks: Callable[..., Any] | None) -> None:
        given = {name: function for name, function in hooks.items() if function is not None}
        for name, function in given.items():
            if name not in HOOKS:
                raise ConfigurationError(
                    f"LambdaCallback: {name!r} is not a hook.{nearest(name, HOOKS)} Valid: {quoted(HOOKS)}."
                )
            if not callable(function):
                raise WrongTypeError(f"{name}={function!r}: must be a function with the arguments of the hook.")
        if not hooks:
            raise ConfigurationError(
                "LambdaCallback: got no function. Give one for a hook, such as on_train_epoch_end=lambda trainer, "
                "module: ..."
            )
        for name, function in given.items():
            setattr(self, name, function)
