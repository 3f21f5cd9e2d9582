"""The profiler that an argument requests."""

from __future__ import annotations

from typing import Any

from ..errors import UnknownNameError, WrongTypeError, nearest, quoted
from ..hints.argument_checks import instead_of_class
from .advanced import AdvancedProfiler
from .base import Profiler
from .pass_through import PassThroughProfiler
from .pytorch import PyTorchProfiler
from .simple import SimpleProfiler

__all__ = ["find_profiler"]

BY_NAME: dict[str, type[Profiler]] = {
    "simple": SimpleProfiler,
    "advanced": AdvancedProfiler,
    "pytorch": PyTorchProfiler,
}


def find_profiler(given: Any) -> Profiler:
    """The profiler of a name, or the object itself; for ``None`` one that measures nothing.

    Raises:
        UnknownNameError: There is no profiler of this name.
        WrongTypeError: It is neither a name nor a :class:`Profiler`.
    """
    if given is None:
        return PassThroughProfiler()
    if isinstance(given, Profiler):
        return given
    if not isinstance(given, str):
        raise WrongTypeError(
            f"profiler={given!r}: must be None, a name ({quoted(BY_NAME)}) or an object of a class in core.profilers."
            f"{instead_of_class(given)}"
        )
    if given not in BY_NAME:
        raise UnknownNameError(
            f"profiler={given!r}: there is no such profiler.{nearest(given, list(BY_NAME))} Valid: {quoted(BY_NAME)}."
        )
    return BY_NAME[given]()
