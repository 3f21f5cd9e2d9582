"""This process's rank before any run exists, from the variables that its launcher has set."""

from __future__ import annotations

import os
from collections.abc import Mapping

from core.environments.detect import LAUNCHED, torchelastic
from core.environments.variables import whole_number

__all__ = ["launched_ranks"]


def launched_ranks(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Rank and world size that a strategy's launcher or torchrun has given to this process; ``(0, 1)`` without one.

    Args:
        environ: The environment variables; by default this process's.
    """
    environ = os.environ if environ is None else environ
    if LAUNCHED not in environ and not torchelastic(environ):
        return 0, 1
    return whole_number(environ, "RANK"), whole_number(environ, "WORLD_SIZE", low=1)
