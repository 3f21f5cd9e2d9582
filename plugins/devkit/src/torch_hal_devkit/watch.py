"""A watch over a backend: its calls may change of the process what the contract says, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import count
from types import FunctionType
from typing import Any

import attrs

from torch_hal_devkit.contract import CONTRACT, UNWATCHED
from torch_hal_devkit.process_state import ASPECTS, OF_A_LIFE, State, changes, recorded

__all__ = ["watched"]

_COMPARED = tuple(aspect for aspect in ASPECTS if aspect not in OF_A_LIFE)
_ALWAYS, _THEN = 4, 16
"""Of the calls of a method all first ones are compared, and then one of so many: a comparison takes a millisecond."""


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
            watch = _Watch(f"{cls.__name__}.{name}", cls, frozenset(method.may_change), found, inside)
            for owner in cls.__mro__:
                given = vars(owner).get(name)
                if given is None or owner is object or getattr(given, "__isabstractmethod__", False):
                    continue
                made = watch.replacing(given)
                if made is not None:
                    setattr(owner, name, made)
                    replaced.append((owner, name, given))
        yield found
    finally:
        for owner, name, given in replaced:
            setattr(owner, name, given)


@attrs.frozen(eq=False)
class _Watch:
    """The watch over one method."""

    name: str
    cls: type[Any]
    allowed: frozenset[str]
    found: list[str]
    inside: threading.local
    calls: Iterator[int] = attrs.field(factory=count)

    def replacing(self, given: Any) -> Any:
        """What calls a definition and compares the process; ``None`` for what is no function."""
        if isinstance(given, staticmethod) and isinstance(given.__func__, FunctionType):
            return staticmethod(self._calling(given.__func__, is_static=True))
        if isinstance(given, property) and given.fget is not None:
            return property(self._calling(given.fget), given.fset, given.fdel, given.__doc__)
        return self._calling(given) if isinstance(given, FunctionType) else None

    def _calling(self, function: Callable[..., Any], *, is_static: bool = False) -> Callable[..., Any]:
        inside = self.inside

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "call", False) or not (is_static or isinstance(args[0], self.cls)):
                return function(*args, **kwargs)
            number = next(self.calls)
            if number >= _ALWAYS and number % _THEN:
                return function(*args, **kwargs)
            inside.call = True
            before = recorded(_COMPARED)
            try:
                return function(*args, **kwargs)
            finally:
                inside.call = False
                self._compare(before, recorded(_COMPARED))

        return call

    def _compare(self, before: State, after: State) -> None:
        for aspect, change in changes(before, after).items():
            line = f"{self.name}() changes the {aspect}: {change}"
            if aspect not in self.allowed and line not in self.found:
                self.found.append(line)
