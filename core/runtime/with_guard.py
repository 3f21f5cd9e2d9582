"""The contexts that methods of the front ends return, which say so where ``with`` was forgotten."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, NoReturn, TypeVar, cast

from ..errors import WrongTypeError
from ..strategies.calls import call_site

__all__ = ["used_by_with"]

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Callable[..., AbstractContextManager[Any]])
T = TypeVar("T")


class _MethodContext(AbstractContextManager[T]):
    """A context that warns if it is dropped before it was entered, as Python does of a coroutine never awaited.

    Args:
        context: The context.
        usage: How to write the call.
    """

    __slots__ = ("_context", "_is_used", "_usage")

    def __init__(self, context: AbstractContextManager[T], usage: str) -> None:
        self._context, self._usage, self._is_used = context, usage, False

    def __enter__(self) -> T:
        self._is_used = True
        return self._context.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._context.__exit__(*error)

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Return the decorated function, where the context itself is one."""
        self._is_used = True
        context: Any = self._context
        return function if isinstance(context, nullcontext) else context(function)

    def __del__(self) -> None:
        if not self._is_used:
            logger.warning("%s: %s", call_site(), self._message("so the call had no effect"))

    def _message(self, consequence: str) -> str:
        called = self._usage.partition("(")[0]
        return f"{called}: what it returned was used without with, {consequence}. Write: with {self._usage}: ..."

    def _refuse(self, *args: object) -> NoReturn:
        self._is_used = True  # it was named
        raise WrongTypeError(self._message("which it needs"))

    __iter__ = __len__ = __getitem__ = _refuse


def used_by_with(usage: str) -> Callable[[M], M]:
    """Decorator: a method returns a context that tells if it is used without ``with``.

    Args:
        usage: How to write the call, for messages.
    """

    def decorate(method: M) -> M:
        @wraps(method)
        def make(*args: Any, **kwargs: Any) -> _MethodContext[Any]:
            return _MethodContext(method(*args, **kwargs), usage)

        return cast("M", make)  # callers see the type of the method's own context, which may be a decorator

    return decorate
