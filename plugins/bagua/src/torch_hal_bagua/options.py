"""Checks of algorithms' options; every message names the option, what was given and what is valid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.errors import ConfigurationError, WrongTypeError, nearest, quoted

__all__ = ["boolean", "whole_number", "word"]


def boolean(name: str, value: Any) -> bool:
    """``value``, if it is ``True`` or ``False``.

    Raises:
        WrongTypeError: It is something else.
    """
    if not isinstance(value, bool):
        raise WrongTypeError(f"{name}={value!r}: expected True or False.")
    return value


def whole_number(name: str, value: Any, low: int) -> int:
    """``value``, if it is a whole number of at least ``low``.

    Raises:
        WrongTypeError: It is no whole number.
        ConfigurationError: It is smaller.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongTypeError(f"{name}={value!r}: expected a whole number of at least {low}.")
    if value < low:
        raise ConfigurationError(f"{name}={value}: too small. Valid: a whole number of at least {low}.")
    return value


def word(name: str, value: Any, valid: Sequence[str]) -> str:
    """``value``, if it is one of ``valid``.

    Raises:
        ConfigurationError: It is not.
    """
    if value not in valid:
        raise ConfigurationError(f"{name}={value!r}: unknown. Valid: {quoted(valid)}.{nearest(str(value), valid)}")
    return str(value)
