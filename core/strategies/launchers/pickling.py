"""Finding what cannot be pickled in an object."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import FunctionType
from typing import Any

import torch

from ...utilities.torch_private import MODULE_CONTENT

_MAX_STEPS = 20
"""Longest path that is shown; a deeper one is cut."""

_MAX_OBJECTS = 3_000_000
"""Number of objects that are searched; it takes some seconds."""


def unpicklable_path(obj: object, name: str = "object") -> tuple[str, str] | None:
    """Find the first object within ``obj`` that cannot be pickled.

    Args:
        obj: The object to search. Storages of tensors are skipped, not copied.
        name: The first part of the path.

    Returns:
        The path, such as ``module.criterion.fn`` or ``args[0]['lock']``, and a description of the object or pickle's
        error; ``None`` if all of ``obj`` can be pickled, or if it is too large to search.
    """
    tracer = _Tracer()
    try:
        tracer.dump(obj)
    except _TooLargeError:
        return None
    except Exception as error:  # noqa: BLE001 - any class's own __reduce__ or __getstate__ may raise anything
        trail = tracer.trail
        return name + "".join(_steps(trail)), _describe(trail[-1] if trail else obj, error)
    return None


class _TooLargeError(Exception):
    """The object is too large to search."""


class _Nowhere:
    """A file that discards what is written."""

    def write(self, data: Any, /) -> int:
        return len(data)


# The pickler in C calls no method for each object.
class _Tracer(pickle._Pickler):
    """Python's own pickler written in Python, remembering the way to what it is saving."""

    def __init__(self) -> None:
        super().__init__(_Nowhere(), pickle.HIGHEST_PROTOCOL)
        self.trail: list[object] = []
        self._count = 0

    def save(self, obj: object, save_persistent_id: bool = True) -> None:
        self._count += 1
        if self._count > _MAX_OBJECTS:
            raise _TooLargeError
        self.trail.append(obj)
        super().save(obj, save_persistent_id)  # type: ignore[misc]
        self.trail.pop()

    def persistent_id(self, obj: object) -> str | None:
        return "storage" if isinstance(obj, (torch.UntypedStorage, torch.TypedStorage)) else None


def _steps(trail: list[object]) -> Iterator[str]:
    """The path along ``trail`` in the notation of Python.

    Between an object and its attributes lies what its ``__reduce_ex__`` gave: tuples, and a dictionary of attributes.
    """
    reduced = False
    for count, (parent, child) in enumerate(pairwise(trail)):
        if count == _MAX_STEPS:
            yield "…"
            return
        if reduced and isinstance(parent, dict):
            key = str(_key(parent.items(), child))
            reduced = isinstance(child, dict) and key in MODULE_CONTENT
            if not reduced:
                yield f"[{key}]" if key.isdecimal() else f".{key}"
        elif reduced and isinstance(parent, tuple):
            reduced = isinstance(child, (tuple, dict))
        elif isinstance(parent, dict) and (key := _key(parent.items(), child)) is not None:
            yield f"[{key!r}]"
        elif isinstance(parent, (list, tuple, deque)) and (index := _key(enumerate(parent), child)) is not None:
            yield f"[{index}]"
        elif isinstance(parent, (set, frozenset, dict)) and any(element is child for element in parent):
            yield f"{{{child!r:.40}}}"
        else:
            reduced = isinstance(child, (tuple, dict))


def _key(items: Iterable[tuple[Any, object]], child: object) -> Any:
    return next((key for key, value in items if value is child), None)


def _describe(obj: object, error: Exception) -> str:
    if isinstance(obj, FunctionType):
        if obj.__name__ == "<lambda>":
            return "a lambda"
        if "<locals>" in obj.__qualname__:
            return f"a function defined inside another, {obj.__qualname__}"
    if isinstance(obj, type) and "<locals>" in obj.__qualname__:
        return f"a class defined inside a function, {obj.__qualname__}"
    if isinstance(obj, (type(threading.Lock()), type(threading.RLock()))):
        return "a lock"
    return f"{type(error).__name__}: {error}"
