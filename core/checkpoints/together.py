"""Steps of a checkpoint that processes take together: what fails in one of them is raised in all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from core.errors import CheckpointError, CoreError

__all__ = ["check_seen", "in_each", "in_first"]

T = TypeVar("T")


def in_first(function: Callable[[], T]) -> T:
    """What ``function`` returns in process 0; an error there is raised in every process."""
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    outcomes: list[Any] = in_each(lambda: function() if is_first else None)
    result: T = outcomes[0]
    return result


def in_each(function: Callable[[], T]) -> list[T]:
    """What ``function`` returns in each process, by rank; an error in any is raised in every process."""
    caught: Exception | None = None
    own: tuple[Any, str | None]
    try:
        own = (function(), None)
    except (CoreError, OSError) as error:
        caught, own = error, (None, f"{type(error).__name__}: {error}")
    outcomes: list[tuple[Any, str | None]] = [own]
    if dist.is_initialized():
        outcomes = [own] * dist.get_world_size()
        dist.all_gather_object(outcomes, own)
    if isinstance(caught, CoreError):
        raise caught
    for rank, (_, said) in enumerate(outcomes):
        if said is not None:
            raise CheckpointError(f"process {rank} could not do its part of the checkpoint: {said}") from caught
    return [result for result, _ in outcomes]


def check_seen(staged: Path) -> None:
    """Refuse a directory that another process has made where this one does not see it.

    Raises:
        CheckpointError: As said.
    """
    if not staged.is_dir():
        raise CheckpointError(f"{staged} is not there. Valid: a path in a file system that all processes share.")
