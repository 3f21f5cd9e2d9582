"""The public attributes of a front end: reading or assigning a misspelt or unknown one raises an error."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, UnknownAttributeError, nearest
from .remedies import remedies

__all__ = ["KnownAttributes", "method_of", "raise_unknown"]

CLOSE = 0.9
"""How similar to a known name an assigned attribute is that is taken for a misspelt one; ``my_max_epochs`` is not."""


def raise_unknown(obj: object, name: str, called: str, remedy: Callable[[str], str]) -> Any:
    """The ``__getattr__`` of a class whose errors say what to use instead of an unknown public attribute.

    Args:
        obj: The object.
        name: The attribute.
        called: What the object is called.
        remedy: What to use instead of an attribute that it does not have; begins with a space.

    Raises:
        AttributeError: Always.
    """
    if name.startswith("_"):
        raise AttributeError(f"{type(obj).__name__!r} object has no attribute {name!r}", name=name, obj=obj)
    if hasattr(type(obj), name):  # a property, which has raised an AttributeError: this repeats it
        return object.__getattribute__(obj, name)
    # Without the argument name, Python does not append a suggestion.
    raise UnknownAttributeError(f"{called}: there is no attribute {name!r}.{remedy(name)}", obj=obj)


class KnownAttributes:
    """The base of :class:`core.Runtime` and :class:`core.Trainer`, which names the attribute that was meant.

    An attribute that they do not have cannot be assigned: nothing would read it. In a class of the user's that derives
    from one of them it can, unless its name is like one that exists.
    """

    def _remedy(self, name: str) -> str:
        front_end = _front_end(self).__name__
        if instead := remedies("attributes", [front_end]).get(name):
            return f" {instead}"
        return nearest(name, _public(self)) or f" All of them: help(core.{front_end})."

    if not TYPE_CHECKING:  # it would allow every attribute

        def __getattr__(self, name: str) -> Any:
            return raise_unknown(self, name, _front_end(self).__name__, self._remedy)

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in self.__dict__ and not name.startswith("_"):
                _check_assigned(self, name, value)
            super().__setattr__(name, value)


def method_of(obj: object, method: str) -> str:
    """What users call a method of ``obj``, wherever it is defined: ``Runtime.prepare``."""
    return f"{_front_end(obj).__name__}.{method}" if isinstance(obj, KnownAttributes) else method


def _front_end(obj: KnownAttributes) -> type:
    """The front end that users know: theirs may derive from it."""
    return next(kind for kind in type(obj).__mro__ if kind.__module__.startswith("torch_hal."))


def _public(obj: KnownAttributes) -> list[str]:
    return [name for name in dir(obj) if not name.startswith("_")]


def _check_assigned(obj: KnownAttributes, name: str, value: Any) -> None:
    """Refuse what would have no effect.

    Raises:
        ConfigurationError: ``name`` is an argument of the constructor, read-only, or no attribute.
    """
    declared = next((vars(kind)[name] for kind in type(obj).__mro__ if name in vars(kind)), None)
    is_read_only = isinstance(declared, property) and declared.fset is None
    is_annotated = any(name in vars(kind).get("__annotations__", ()) for kind in type(obj).__mro__)
    if not is_read_only and (declared is not None or is_annotated):
        return
    front_end = _front_end(obj)
    subject = f"{front_end.__name__.lower()}.{name} = {value!r:.100}"
    arguments = list(inspect.signature(front_end.__init__).parameters)[1:]  # type: ignore[misc]
    constructor = f"Pass it to the constructor: {front_end.__name__}({name}={value!r})."
    if is_read_only:
        remedy = constructor if name in arguments else "It says what the run is, and cannot be changed."
        raise ConfigurationError(f"{subject}: is read-only. {remedy}")
    if name in arguments:
        raise ConfigurationError(f"{subject}: has no effect after the {front_end.__name__} was made. {constructor}")
    meant = _meant(name, [*arguments, *_public(obj)])
    if meant is not None:
        raise ConfigurationError(f"{subject}: there is no such setting. Did you mean {meant!r}?")
    if type(obj) is front_end:
        own = f"Keep a value of your own in a variable, or in a class that derives from {front_end.__name__}."
        instead = remedies("attributes", [front_end.__name__]).get(name, own)
        raise ConfigurationError(f"{subject}: there is no such attribute, so it has no effect. {instead}")


def _meant(name: str, known: list[str]) -> str | None:
    """The known name that ``name`` misspells; or, if ``name`` has several words, one that begins with them."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=CLOSE)
    if close:
        return close[0]
    return next((each for each in known if "_" in name and each.startswith(f"{name}_")), None)
