"""Callbacks of other libraries whose hooks have the same names and get the trainer and the module first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import Any

from ..errors import ConfigurationError, quoted
from .base import HOOKS, Callback

SHAPE = ("setup", "teardown", "on_fit_start", "on_train_start", "on_train_batch_end", "on_train_end", "state_dict")
"""The methods by which such a base class is recognized."""


def adapted(given: Any) -> Any:
    """``given`` as a Callback that calls its hooks, if it has their shape; anything else is returned as it is.

    Raises:
        ConfigurationError: It is one of the library's own that core has too: those work on the inside of its Trainer.
            Or it has hooks that are never called.
    """
    base = _base_of(given)
    if base is None:
        return given
    library = base.__module__.partition(".")[0]
    own = [kind for kind in type(given).__mro__ if kind.__module__.partition(".")[0] == library and kind is not base]
    same = next((kind.__name__ for kind in own if kind.__name__ in _names_of_core()), None)
    if same is not None:
        raise ConfigurationError(
            f"callbacks: {type(given).__name__} is made for the Trainer of {library}. Use core.callbacks.{same} "
            "instead, which takes the same arguments."
        )
    overridden = {name for name in dir(type(given)) if getattr(type(given), name) is not getattr(base, name, None)}
    never = sorted(name for name in overridden if name.startswith("on_") and hasattr(base, name) and name not in HOOKS)
    if never:
        raise ConfigurationError(
            f"callbacks: {type(given).__name__} has the hook(s) {quoted(never)} of {library}, which core's Trainer "
            "does not call. Use other hooks; docs/callbacks.md lists them."
        )
    return AdaptedCallback(given, frozenset(overridden))


def _base_of(given: Any) -> type[Any] | None:
    """The class that defines the hooks, which do nothing there; ``None`` if ``given`` has another shape."""
    if isinstance(given, type | Callback) or not all(callable(getattr(type(given), name, None)) for name in SHAPE):
        return None
    defining = [kind for kind in type(given).__mro__ if all(name in vars(kind) for name in SHAPE)]
    return defining[-1] if defining else None


def _names_of_core() -> frozenset[str]:
    return frozenset(sys.modules[__package__].__all__) - {"Callback"}


class AdaptedCallback(Callback):
    """Calls the hooks of ``given``, and saves its state under its own name.

    Args:
        given: The user's object.
        overridden: The names of what its class overrides.
    """

    def __init__(self, given: Any, overridden: frozenset[str]) -> None:
        self.given = given
        for name in overridden.intersection(HOOKS):
            hook = getattr(given, name)
            takes_more = _positions(hook) >= _positions(getattr(Callback, name))
            setattr(self, name, partial(_numbered, hook) if takes_more else hook)

    @property
    def state_key(self) -> str:
        """Its own name."""
        return str(getattr(self.given, "state_key", type(self.given).__qualname__))

    def state_dict(self) -> dict[str, Any]:
        """Its own state."""
        state: dict[str, Any] = self.given.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self.given.load_state_dict(state_dict)


def _positions(hook: Callable[..., Any]) -> int:
    """The number of arguments that the hook requires."""
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    parameters: Mapping[str, Parameter] = signature(hook).parameters
    return sum(parameter.kind in kinds and parameter.default is Parameter.empty for parameter in parameters.values())


def _numbered(hook: Callable[..., Any], *args: Any, dataloader_idx: int = 0) -> Any:
    """Call a hook that has to be given the number of the loader."""
    return hook(*args, dataloader_idx)
