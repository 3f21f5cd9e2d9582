"""The profiler that an argument requests."""

from __future__ import annotations

from typing import Any

from ..discovery.classes import find_class
from ..discovery.loading import describe
from ..errors import BackendError, CoreError, WrongTypeError
from ..hints.argument_checks import instead_of_class
from .base import PassThroughProfiler, Profiler

__all__ = ["find_profiler"]


def find_profiler(given: Any) -> Profiler:
    """The profiler of a name, or the object itself; for ``None`` one that measures nothing.

    Raises:
        BackendError: The named profiler is broken, denied, incompatible or in conflict.
        UnknownNameError: There is no profiler of this name.
        WrongTypeError: It is neither a name nor a :class:`Profiler`.
    """
    if given is None:
        return PassThroughProfiler()
    if isinstance(given, Profiler):
        return given
    if not isinstance(given, str):
        raise WrongTypeError(
            f"profiler={given!r}: must be None, a name such as 'simple', or an object of a class in core.profilers."
            f"{instead_of_class(given)}"
        )
    named = find_class("profiler", given, "profiler")
    try:
        profiler: Profiler = named()
    except CoreError:
        raise
    except Exception as error:  # another distribution's class may raise anything
        raise BackendError(
            f"profiler={given!r}: {named.__qualname__}() raises {describe(error)}. If it needs arguments, pass an "
            f"object: profiler={named.__qualname__}(...)."
        ) from error
    return profiler
