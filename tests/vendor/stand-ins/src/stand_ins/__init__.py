"""What the stand-ins were asked, in order."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["bound", "calls", "device_count", "recorded"]

F = TypeVar("F", bound=Callable[..., Any])

calls: list[str] = []
"""Names of the functions called, in order."""

bound: list[str] = []
"""Of Gaudi: what ``HLS_MODULE_ID`` said when the process took its card, once for each time."""


def recorded(name: str) -> Callable[[F], F]:
    """Record each call of a function as ``name``."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]

    return decorate


def device_count(variable: str) -> int:
    """How many devices the environment variable says there are; one where it says nothing."""
    return int(os.environ.get(variable, "1"))
