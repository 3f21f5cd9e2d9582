"""Checks of arguments that are plain words: numbers, flags, paths."""

from __future__ import annotations

import os
from typing import Any

from core.errors import ConfigurationError, WrongTypeError

__all__ = ["check_clip_value", "check_count", "check_flag", "check_path"]


def check_count(name: str, value: Any, low: int, optional: bool = False) -> None:
    """Refuse what is no whole number from ``low``, nor ``None`` where that is ``optional``."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        valid = f"a whole number from {low}" + (", or None" if optional else "")
        raise ConfigurationError(f"{name}={value!r}: not a number of them. Valid: {valid}.")


def check_flag(name: str, value: Any, optional: bool = False) -> None:
    """Refuse what is neither true nor false, nor ``None`` where that is ``optional``."""
    if not isinstance(value, bool) and not (optional and value is None):
        raise WrongTypeError(f"{name}={value!r}. Valid: True, False{', None' if optional else ''}.")


def check_path(name: str, value: Any) -> None:
    """Refuse what is neither a path nor ``None``."""
    if value is not None and not isinstance(value, str | os.PathLike):
        raise WrongTypeError(f"{name}={value!r}: given no path. Valid: a path, or None.")


def check_clip_value(value: Any) -> None:
    """Refuse what is neither a number above 0 nor ``None``."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
        raise ConfigurationError(f"gradient_clip_val={value!r}: no limit. Valid: a number above 0, or None.")
