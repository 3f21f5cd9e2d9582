"""Steps that all processes take, and decisions of rank 0: an error in one process is raised in every process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from ..errors import CheckpointError, CoreError
from ..utilities.objects import gather_pickled, pickled

T = TypeVar("T")

GatherObject = Callable[[Any], list[Any]]
"""Returns the objects of all processes, by rank; see :meth:`core.Strategy.all_gather_object`."""


def run_on_rank_zero(function: Callable[[], T], gather: GatherObject | None = None) -> T:
    """Call ``function`` in rank 0 of the default process group, if there is one; every process calls this.

    Args:
        function: As of :func:`run_on_each_rank`.
        gather: As of :func:`run_on_each_rank`.

    Returns:
        What it returned there, in every process.

    Raises:
        CheckpointError: It raised an exception; raised in every process.
    """
    is_zero = not dist.is_initialized() or dist.get_rank() == 0
    outcomes: list[Any] = run_on_each_rank(lambda: function() if is_zero else None, gather)
    result: T = outcomes[0]
    return result


def run_on_each_rank(function: Callable[[], T], gather: GatherObject | None = None) -> list[T]:
    """Call ``function`` in every process; every process calls this.

    Args:
        function: What is called. What it returns can be pickled.
        gather: How processes exchange objects; over the default process group unless given.

    Returns:
        What it returned in each process, by rank.

    Raises:
        CoreError: The exception that it raised in this process, if that is one of torch-hal's.
        CheckpointError: It raised another exception in this process, or any in another process.
    """
    caught: Exception | None = None
    own: tuple[Any, str | None]
    try:
        own = (function(), None)
    except Exception as error:  # noqa: BLE001  a CheckpointIO of the user's may raise anything
        caught, own = error, (None, f"{type(error).__name__}: {error}")
    outcomes = (gather or gather_over(None))(own)
    if isinstance(caught, CoreError):
        raise caught
    for rank, (_, failure) in enumerate(outcomes):
        if failure is not None:
            raise CheckpointError(f"rank {rank} could not do its part of the checkpoint: {failure}") from caught
    return [result for result, _ in outcomes]


def decide_on_rank_zero(
    function: Callable[[], T],
    is_zero: bool,
    broadcast: Callable[[Any], Any],
    raised_elsewhere: Callable[[Exception], CoreError],
    caught: type[Exception] = CoreError,
) -> T:
    """Return to every process what ``function`` returns in rank 0. Every process calls this; it is one broadcast.

    Args:
        function: What is called. What it returns can be pickled.
        is_zero: Whether this process is rank 0.
        broadcast: Sends an object of rank 0 to all, and returns it.
        raised_elsewhere: The error that the other processes raise, made of the one in rank 0.
        caught: The exceptions that are raised in every process; any other ends rank 0 alone.
    """
    error: Exception | None = None
    outcome: tuple[Any, CoreError | None] = (None, None)
    if is_zero:
        try:
            outcome = (function(), None)
        except caught as raised:
            error, outcome = raised, (None, raised_elsewhere(raised))
    result, refusal = broadcast(outcome)
    if error is not None:
        raise error
    if refusal is not None:
        raise refusal
    decided: T = result
    return decided


def gather_over(group: dist.ProcessGroup | None) -> GatherObject:
    """Exchange objects over ``group``. Without one, use the default process group if it exists."""

    def gather(obj: Any) -> list[Any]:
        if not dist.is_initialized():
            return [obj]
        return gather_pickled(pickled(obj), group)

    return gather


def check_shared(staged: Path) -> None:
    """Refuse a directory that another process has made if this process does not see it.

    Raises:
        CheckpointError: It does not.
    """
    if not staged.is_dir():
        raise CheckpointError(f"{staged} does not exist. Use a path in a file system that all processes share.")
