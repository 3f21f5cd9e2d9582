"""What a step logs on the parts of a batch: logged once, for the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from torch_hal.strategies import LOG_REDUCTIONS, LoggedValue, reduce_logged

__all__ = ["PartLog", "log_whole_batch"]


class PartLog:
    """Keeps what is logged on one part; for :func:`core.strategies.collect_logs`.

    Args:
        size: The number of items of the part.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept: dict[tuple[str, int], LoggedValue] = {}
        """By name and, for several values of one name, their number."""

    def __call__(self, logged: LoggedValue) -> None:
        """Keep one value, as it is now."""
        number = 0
        while (logged.name, number) in self.kept:
            number += 1
        if isinstance(logged.value, Tensor):
            logged = attrs.evolve(logged, value=logged.value.detach().clone())
        self.kept[logged.name, number] = logged


def log_whole_batch(parts: Sequence[PartLog], device: torch.device) -> None:
    """Log what the parts logged, reduced over them: a mean is weighted by ``batch_size`` or else by the part's size.

    If a part logs a name several times, its first value is reduced with the first values of the others, and so on.

    Args:
        parts: What each part logged.
        device: Where the values are reduced.
    """
    for key in dict.fromkeys(key for part in parts for key in part.kept):
        _log_reduced([(part.kept[key], part.size) for part in parts if key in part.kept], device)


def _log_reduced(logged: Sequence[tuple[LoggedValue, int]], device: torch.device) -> None:
    first = logged[0][0]
    values = [part.value for part, _ in logged]
    if first.reduce_fx in LOG_REDUCTIONS and all(map(_is_scalar, values)):  # otherwise logging it raises the error
        sizes = [size if part.batch_size is None else part.batch_size for part, size in logged]
        first = attrs.evolve(
            first,
            value=reduce_logged([_on(value, device) for value in values], sizes, first.reduce_fx),
            batch_size=None if first.batch_size is None else sum(sizes),
        )
    first.log()


def _is_scalar(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float)


def _on(value: Any, device: torch.device) -> Any:
    return value.to(device).reshape(()) if isinstance(value, Tensor) else value
