"""Checks of values that users pass as arguments."""

from __future__ import annotations

import os
from typing import Any

from core.errors import ConfigurationError, WrongTypeError

__all__ = ["check_count", "check_path", "is_url"]


def check_count(name: str, value: Any, low: int, optional: bool = False) -> None:
    """Check that ``value`` is an integer ≥ ``low``, or ``None`` if ``optional``.

    Raises:
        ConfigurationError: It is not.
    """
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigurationError(f"{name}={value!r}: must be an integer ≥ {low}{' or None' if optional else ''}.")


def check_path(name: str, value: Any) -> None:
    """Check that ``value`` is a path or ``None``.

    Raises:
        WrongTypeError: It is neither.
    """
    if value is not None and not isinstance(value, str | os.PathLike):
        raise WrongTypeError(f"{name}={value!r}: must be a path (str or os.PathLike) or None.")


def is_url(path: object) -> bool:
    """Whether ``path`` is a URL of another store than the file systems of this machine."""
    return isinstance(path, str) and "://" in path and not path.startswith("file://")
