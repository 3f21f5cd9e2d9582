"""Reading whole numbers out of environment variables."""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import ConfigurationError

__all__ = ["whole_number"]


def whole_number(environ: Mapping[str, str], variable: str, default: int | None = None) -> int:
    """The value of ``variable`` as a whole number from 0 on.

    Raises:
        ConfigurationError: It is not set and has no default, or is no such number.
    """
    text = environ.get(variable)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.isdigit():
        given = "not set" if text is None else repr(text)
        raise ConfigurationError(f"environment variable {variable}: given {given}. Valid: a whole number from 0 on.")
    return int(text)
