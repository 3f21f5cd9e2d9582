"""Checks of algorithms' options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_hal.errors import ConfigurationError, WrongTypeError, nearest, quoted

__all__ = ["boolean", "choice", "whole_number"]


def boolean(name: str, value: Any) -> bool:
    """Return ``value`` if it is ``True`` or ``False``.

    Raises:
        WrongTypeError: It is not a bool.
    """
    if not isinstance(value, bool):
        raise WrongTypeError(f"{name}={value!r} must be True or False.")
    return value


def whole_number(name: str, value: Any, low: int) -> int:
    """Return ``value`` if it is an integer >= ``low``.

    Raises:
        WrongTypeError: It is not an integer.
        ConfigurationError: It is smaller than ``low``.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongTypeError(f"{name}={value!r}: must be an integer >= {low}.")
    if value < low:
        raise ConfigurationError(f"{name}={value}: must be an integer >= {low}.")
    return value


def choice(name: str, value: Any, valid: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``valid``.

    Raises:
        ConfigurationError: It is not one of ``valid``.
    """
    if value not in valid:
        raise ConfigurationError(f"{name}={value!r}: unknown. Valid: {quoted(valid)}.{nearest(str(value), valid)}")
    return str(value)
