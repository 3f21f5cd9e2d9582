"""Where all processes of a run wait for each other, without a collective: when they join, and when they leave."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from core.errors import LaunchError
from core.strategies.board import lost_store, wait_for_key
from core.strategies.patience import Patience, address_of

__all__ = ["meet", "meet_to_join", "ranks_missing"]

LISTING = 32
"""Up to so many ranks, each that waits lists those that are missing; in a larger run only ranks 0 and 1."""

MEETING_POINTS = {"joining": "to join the process group", "leaving": "to leave the process group"}


def meet(
    store: Store,
    point: str,
    world_size: int,
    rank: int,
    limit: timedelta,
    check: Callable[[], None] | None,
    extends: Callable[[], bool] = bool,
) -> bool:
    """Wait until every rank has reached ``point``.

    Args:
        store: Of the run.
        point: Where they meet.
        world_size: The number of processes.
        rank: Of this process.
        limit: How long it waits.
        check: Called while waiting.
        extends: Called at the limit; whether this process waits for as long again.

    Returns:
        Whether all have within ``limit``.
    """
    store.set(f"{point}/{rank}", "")
    if store.add(point, 1) == world_size:
        store.set(f"{point}/all", "")
    patience = Patience(f"rank {rank} of {world_size} waits {MEETING_POINTS[point]}{address_of(store)}", limit)

    def whom() -> str:
        if world_size <= LISTING or rank < 2:
            return f"for rank(s) {ranks_missing(store, point, world_size)}"
        # Each asking for each would keep the store busy, with the square of their number.
        return f"for {world_size - store.add(point, 0)} rank(s), which ranks 0 and 1 list"

    def look() -> None:
        if check is not None:
            check()
        patience.tell(whom)

    while not wait_for_key(store, f"{point}/all", limit.total_seconds(), look):
        if not extends():
            return False
    return True


def meet_to_join(store: Store, rank: int, world_size: int, limit: timedelta, check: Callable[[], None] | None) -> None:
    """Wait until every rank has come to join the process group.

    Raises:
        LaunchError: Some have not within ``limit``, or the store was lost; or from ``check``.
    """
    try:
        met = meet(store, "joining", world_size, rank, limit, check)
        missing = [] if met else ranks_missing(store, "joining", world_size)
    except dist.DistError as error:
        raise lost_store(error) from error
    if not met:
        raise LaunchError(f"rank(s) {missing} of {world_size} did not join the process group within {limit}.")


def ranks_missing(store: Store, point: str, world_size: int) -> list[int]:
    """The ranks that have not reached ``point``, by few requests if they are few of many."""

    def among(ranks: range) -> list[int]:
        if store.check([f"{point}/{rank}" for rank in ranks]):
            return []
        half = len(ranks) // 2
        return [*among(ranks[:half]), *among(ranks[half:])] if half else [*ranks]

    return among(range(world_size))
