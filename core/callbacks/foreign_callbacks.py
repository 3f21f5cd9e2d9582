"""Callbacks of other libraries whose hooks have the same names and get the trainer and the module first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from ..errors import ConfigurationError, quoted
from .base import Callback

__all__ = ["AdaptedCallback", "adapted"]

SHAPE = ("setup", "teardown", "on_fit_start", "on_train_start", "on_train_batch_end", "on_train_end", "state_dict")
"""The methods by which such a base class is recognized."""
METHODS = ("state_dict", "load_state_dict", "state_key", "log", "log_dict", "before_optimizers_load", "idle_hooks")
"""What a Callback has that is not a hook."""
HOOKS = tuple(
    name
    for name, member in vars(Callback).items()
    if callable(member) and not name.startswith("_") and name not in METHODS
)


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
        self.idle_hooks = frozenset(HOOKS) - overridden
        hooks = {name: getattr(given, name) for name in overridden & frozenset(HOOKS)}
        self._takes = {name: _positions(hook) for name, hook in hooks.items()}
        self._by_name = {name for name, hook in hooks.items() if "dataloader_idx" in signature(hook).parameters}

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

    def call(self, name: str, *args: Any, dataloader_idx: int = 0) -> Any:
        """Call the hook, with the number of the loader where it has that argument or wants one more."""
        hook = getattr(self.given, name)
        if name in self._by_name:
            return hook(*args, dataloader_idx=dataloader_idx)
        return hook(*args, *((dataloader_idx,) if self._takes.get(name, 0) == len(args) + 1 else ()))


def _positions(hook: Callable[..., Any]) -> int:
    """The number of arguments that the hook requires."""
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    parameters: Mapping[str, Parameter] = signature(hook).parameters
    return sum(parameter.kind in kinds and parameter.default is Parameter.empty for parameter in parameters.values())


def _forwarding(name: str) -> Callable[..., Any]:
    def hook(self: AdaptedCallback, *args: Any, dataloader_idx: int = 0) -> Any:
        return self.call(name, *args, dataloader_idx=dataloader_idx)

    hook.__name__, hook.__doc__ = name, f"Calls the user's ``{name}``."
    return hook


for _name in HOOKS:
    setattr(AdaptedCallback, _name, _forwarding(_name))
