"""A watch over a backend: its calls may change of the process what the contract says, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType
from typing import Any

from torch_hal_devkit.contract import CONTRACT, UNWATCHED
from torch_hal_devkit.process_state import ASPECTS, OF_A_LIFE, changes, recorded

__all__ = ["watched"]

_COMPARED = tuple(aspect for aspect in ASPECTS if aspect not in OF_A_LIFE)


@contextmanager
def watched(kind: str, cls: type[Any]) -> Iterator[list[str]]:
    """Watch the calls of all objects of a class; yields a list to which each forbidden change is added, in words.

    Methods are replaced where they are defined, in the class or a base, so that what core finds out about overridden
    methods stays true.

    Args:
        kind: The kind of backend, which names the contract.
        cls: Its class.
    """
    found: list[str] = []
    inside = threading.local()
    replaced: list[tuple[type[Any], str, Any]] = []
    try:
        for name, method in CONTRACT[kind].items():
            if name in UNWATCHED:
                continue
            for owner in cls.__mro__:
                given = vars(owner).get(name)
                if given is None or owner is object or getattr(given, "__isabstractmethod__", False):
                    continue
                made = _replaced(given, f"{cls.__name__}.{name}", cls, frozenset(method.may_change), found, inside)
                if made is not None:
                    setattr(owner, name, made)
                    replaced.append((owner, name, given))
        yield found
    finally:
        for owner, name, given in replaced:
            setattr(owner, name, given)


def _replaced(given: Any, *about: Any) -> Any:
    if isinstance(given, staticmethod) and isinstance(given.__func__, FunctionType):
        return staticmethod(_watching(given.__func__, *about, True))
    if isinstance(given, property) and given.fget is not None:
        return property(_watching(given.fget, *about, False), given.fset, given.fdel, given.__doc__)
    return _watching(given, *about, False) if isinstance(given, FunctionType) else None


def _watching(
    function: Callable[..., Any],
    name: str,
    cls: type[Any],
    allowed: frozenset[str],
    found: list[str],
    inside: threading.local,
    static: bool,
) -> Any:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(inside, "call", False) or not (static or isinstance(args[0], cls)):
            return function(*args, **kwargs)
        inside.call = True
        before = recorded(_COMPARED)
        try:
            return function(*args, **kwargs)
        finally:
            inside.call = False
            for aspect, change in changes(before, recorded(_COMPARED)).items():
                line = f"{name}() changes the {aspect}: {change}"
                if aspect not in allowed and line not in found:
                    found.append(line)

    return call
