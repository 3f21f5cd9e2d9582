"""Whether the user has overridden a method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["overridden"]


def overridden(owner: Any, base: type[Any], name: str) -> Callable[..., Any] | None:
    """The method called ``name`` of ``owner`` if it is not that of ``base``; otherwise ``None``.

    The user may define it in the class or assign it to the object. ``None`` in its place removes it, for example
    ``model.validation_step = None``.
    """
    method: Callable[..., Any] | None = getattr(owner, name, None)
    if method is None or getattr(method, "__func__", method) is getattr(base, name):
        return None
    return method
