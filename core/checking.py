"""Checks of arguments: their names, and values that users pass."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from core.errors import LONGEST_LIST, ConfigurationError, WrongTypeError, nearest, quoted

__all__ = ["check_count", "check_path", "is_url", "suggest_arguments", "suggest_arguments_of"]

P = ParamSpec("P")
T = TypeVar("T")


def check_count(name: str, value: Any, low: int, optional: bool = False) -> None:
    """Check that ``value`` is an integer ≥ ``low``, or ``None`` if ``optional``.

    Raises:
        ConfigurationError: It is not.
    """
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigurationError(f"{name}={value!r}: must be an integer ≥ {low}{' or None' if optional else ''}.")


def check_path(name: str, value: Any, optional: bool = True) -> None:
    """Check that ``value`` is a path, or ``None`` if ``optional``.

    Raises:
        WrongTypeError: It is neither.
    """
    if not isinstance(value, str | os.PathLike) and not (optional and value is None):
        raise WrongTypeError(f"{name}={value!r}: must be a path (str or os.PathLike){' or None' if optional else ''}.")


def is_url(path: object) -> bool:
    """Whether ``path`` is a URL of another store than the file systems of this machine."""
    return isinstance(path, str) and "://" in path and not path.startswith("file://")


def suggest_arguments(
    method: Callable[P, T], remedies: Mapping[str, str] | None = None, owner: str | None = None
) -> Callable[P, T]:
    """Make ``method`` name the most similar argument if it gets an unknown one.

    Args:
        method: A constructor or a method without ``**`` arguments.
        remedies: For arguments that it does not have: what to do instead.
        owner: What users call it, for the message; its qualified name unless given.

    Raises:
        WrongTypeError: In the method, for an unknown argument.
    """
    names = [
        name
        for name, parameter in list(inspect.signature(method).parameters.items())[1:]
        if parameter.kind is not parameter.VAR_POSITIONAL
    ]
    called = owner or method.__qualname__.removesuffix(".__init__")
    instead = remedies or {}

    def suggestion(name: str) -> str:
        if name in instead:
            return f" {instead[name]}"
        listed = f"Arguments: {quoted(names)}." if len(names) <= LONGEST_LIST else f"All of them: help(core.{called})"
        return nearest(name, names) or f" {listed}"

    @wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:  # costs nothing in a loop, where names are checked only after Python has refused the call
            return method(*args, **kwargs)
        except TypeError:
            for name in kwargs:
                if name not in names:
                    raise WrongTypeError(f"{called}: unknown argument {name!r}.{suggestion(name)}") from None
            raise

    return checked


def suggest_arguments_of(cls: type) -> None:
    """Let a class that defines its own constructor, without ``**`` arguments, name the most similar argument."""
    own = vars(cls).get("__init__")
    if own is not None and not any(
        each.kind is each.VAR_KEYWORD for each in inspect.signature(own).parameters.values()
    ):
        cls.__init__ = suggest_arguments(own)  # type: ignore[misc]
