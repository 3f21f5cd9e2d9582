"""The console of the callbacks that write with rich, an optional package."""

from __future__ import annotations

import importlib.util
from typing import Any

from ...errors import ConfigurationError
from ...hints.remedies import package

__all__ = ["check_rich", "has_rich", "make_console"]


def has_rich() -> bool:
    """Whether rich is installed."""
    return importlib.util.find_spec("rich") is not None


def check_rich(owner: object, instead: str) -> None:
    """Refuse to go on without rich.

    Args:
        owner: What needs it.
        instead: The callback that does without.

    Raises:
        ConfigurationError: It is not installed.
    """
    if not has_rich():
        raise ConfigurationError(
            f"{type(owner).__name__}: rich is not installed. Run: pip install {package('torch-hal[rich]')!r}, or use "
            f"{instead}."
        )


def make_console(**options: Any) -> Any:
    """A console on the standard error stream, with further arguments of ``rich.console.Console``."""
    from rich.console import Console

    return Console(**{"stderr": True, **options})
