"""Limits to the number of batches of a stage."""

from __future__ import annotations

import math
from typing import Any

from ...errors import ConfigurationError
from ...strategies.base import Strategy
from ..settings import Limit, Settings

__all__ = ["agreed_length", "length_of", "limited", "validation_interval"]


def length_of(loader: Any) -> float:
    """The number of batches of ``loader``; infinite if it is not known."""
    try:
        return len(loader)
    except TypeError:  # a stream
        return math.inf


def agreed_length(strategy: Strategy, own: float, *, smallest: bool) -> float:
    """The smallest or largest of what the processes give; every process calls it."""
    if strategy.world_size == 1:
        return own
    lengths = strategy.all_gather_object(own)
    return min(lengths) if smallest else max(lengths)


def limited(length: float, limit: Limit | None, argument: str) -> float:
    """How many of ``length`` batches a stage takes.

    Args:
        length: The number of batches; infinite if it is not known.
        limit: A number of batches as an integer, or a fraction as a float; ``None`` for all.
        argument: The name of the argument that gave it.

    Raises:
        ConfigurationError: A fraction of an unknown number, or of so few batches that none is left.
    """
    if limit is None or (limit == 1.0 and isinstance(limit, float)):
        return length
    if isinstance(limit, int):
        return min(length, limit)
    if limit and math.isinf(length):
        raise ConfigurationError(
            f"{argument}={limit}: the loader has no length, so there is no fraction of it. Give a number of batches as "
            "an integer."
        )
    if limit and length and not int(length * limit):
        raise ConfigurationError(
            f"{argument}={limit}: less than one of {length} batches. Give a number of batches as an integer, a larger "
            "fraction, or 0 for none."
        )
    return int(length * limit) if limit else 0


def validation_interval(settings: Settings, num_batches: float) -> int | None:
    """The number of training batches from one validation to the next; ``None`` for one at the end of an epoch.

    Args:
        settings: Of the run.
        num_batches: The number of batches of the epoch; infinite if it is not known.

    Raises:
        ConfigurationError: The interval does not fit the number of batches.
    """
    interval = settings.val_check_interval
    if isinstance(interval, int):
        if interval > num_batches and settings.check_val_every_n_epoch is not None:
            raise ConfigurationError(
                f"val_check_interval={interval}: an epoch has only {num_batches} batches, so validation would never "
                "run. Give a smaller number; or set check_val_every_n_epoch=None to count batches over all epochs, or "
                "limit_val_batches=0 for no validation."
            )
        return interval
    if interval == 1.0 or not isinstance(interval, float):  # a time is no number of batches
        return None
    if math.isinf(num_batches):
        raise ConfigurationError(
            f"val_check_interval={interval}: the training loader has no length, so there is no fraction of an epoch. "
            "Give a number of batches as an integer."
        )
    return max(int(num_batches * interval), 1)
