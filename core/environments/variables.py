"""Reading whole numbers out of environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping

from core.errors import ConfigurationError

__all__ = ["LARGEST_PORT", "whole_number"]

LARGEST_PORT = 65535

_DIGITS = re.compile(r"\d{1,9}", re.ASCII)


def whole_number(
    environ: Mapping[str, str], variable: str, default: int | None = None, *, low: int = 0, high: int | None = None
) -> int:
    """The value of ``variable`` as a whole number.

    Args:
        environ: The environment variables.
        variable: The name.
        default: The answer where it is not set.
        low: The smallest valid number.
        high: The largest valid number; ``None`` for any.

    Raises:
        ConfigurationError: It is not set and has no default, or is no such number.
    """
    text = environ.get(variable)
    if text is None and default is not None:
        return default
    number = int(text) if text is not None and _DIGITS.fullmatch(text) else -1
    if number < low or (high is not None and number > high):
        given = "not set" if text is None else repr(text[:100])
        valid = f"from {low} on" if high is None else f"from {low} to {high}"
        raise ConfigurationError(f"environment variable {variable}: given {given}. Valid: a whole number {valid}.")
    return number
