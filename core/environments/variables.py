"""Environment variables that several cluster environments share, and reading integers from variables."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import ConfigurationError

__all__ = ["LARGEST_ID", "LARGEST_PORT", "LAUNCHED", "TORCHRUN_VARIABLES", "whole_number"]

LAUNCHED = "CORE_LAUNCHED_PLAN"
"""Set by a strategy's launcher in the processes that it starts: the Plan that they run, as JSON."""

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""The variables that torchrun sets. Whoever starts processes by hand must set them too."""

LARGEST_PORT = 65535
LARGEST_ID = 10**18
"""Of a job: schedulers that are joined in a federation count beyond ten digits."""
_LARGEST_COUNT = 999_999_999

_DIGITS = re.compile(r"\d{1,18}", re.ASCII)


def whole_number(
    environ: Mapping[str, str], variable: str, default: int | None = None, *, low: int = 0, high: int | None = None
) -> int:
    """The value of ``variable`` as an integer.

    Args:
        environ: The environment variables.
        variable: The variable's name.
        default: Returned if the variable is not set.
        low: The smallest valid integer.
        high: The largest valid integer; ``None`` for that of a count.

    Raises:
        ConfigurationError: The variable is not set and there is no default, or it is not an integer in this range.
    """
    text = environ.get(variable)
    if text is None and default is not None:
        return default
    number = int(text) if text is not None and _DIGITS.fullmatch(text) else -1
    if not low <= number <= (_LARGEST_COUNT if high is None else high):
        given = "is not set" if text is None else f"is {text[:100]!r}"
        valid = f"≥ {low}" if high is None else f"from {low} to {high}"
        raise ConfigurationError(f"environment variable {variable} {given}. It must be an integer {valid}.")
    return number
