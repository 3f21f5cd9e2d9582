"""A point where all processes of a run wait for each other, without a collective: to join, and to leave.

A process that waits to join learns in the store that another one has called another method, or has ended its script.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from ..checkpoints.base import CheckpointIO
from ..errors import LaunchError
from ..utilities.objects import by_rank
from ..utilities.torch_private import num_groups
from .base import Strategy
from .calls import method_called
from .launchers.exit_codes import ended_by_failure
from .stack_exchange import Stacks, Whereabouts
from .store.notes import Board, lost_store, wait_for_key
from .store.tcp_store import RunStore, address_of
from .time_limits import (
    END_REQUEST_SECONDS,
    FIRST_LOOK_SECONDS,
    LOOK_SECONDS,
    LOOKS_APART_SECONDS,
    SAVES_POLL_SECONDS,
    LongWait,
)

logger = logging.getLogger(__name__)


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
    purpose: str = "",
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
        purpose: What follows in messages.

    Returns:
        Whether all have within ``limit``.
    """
    # Before it is counted, so that no one that was counted is listed as missing.
    store.set(f"{point}/{rank}", "")
    if store.add(point, 1) == world_size:
        store.set(f"{point}/all", "")
    wait = LongWait(f"rank {rank} of {world_size} waits {MEETING_POINTS[point]}{address_of(store)}{purpose}", limit)

    def whom() -> str:
        if world_size <= LISTING or rank < 2:
            return f"for rank(s) {ranks_missing(store, point, world_size)}"
        # Each asking for each would keep the store busy, with the square of their number.
        return f"for {world_size - store.add(point, 0)} rank(s), which ranks 0 and 1 list"

    def look() -> None:
        if check is not None:
            check()
        wait.tell(whom)

    while not wait_for_key(store, f"{point}/all", limit.total_seconds(), look, world_size):
        if not extends():
            return False
    return True


def meet_to_join(store: Store, rank: int, world_size: int, limit: timedelta, check: Callable[[], None] | None) -> None:
    """Wait until every rank joins the process group of a run.

    Raises:
        LaunchError: Some have not within ``limit``, have ended their script, or have called another method of a
            Trainer; or the store was lost; or from ``check``.
    """
    method, site = method_called()
    place = f"{method} ({site})" if site else "the run"
    kind = "Runtime" if method.startswith("Runtime.") else method  # any method of a Runtime starts its processes

    def look() -> None:
        if check is not None:
            check()
        if ended.are_noted():
            raise LaunchError(_not_called(store, place, world_size))

    ended = _Ended(store)
    try:
        store.set(f"method/{rank}", place)
        if store.compare_set("method", "", kind).decode() != kind:  # the first process's stays
            store.set("methods differ", "")
        met = meet(store, "joining", world_size, rank, limit, look, purpose=f" for {place}" if site else "")
        missing = [] if met else ranks_missing(store, "joining", world_size)
        places = []
        if met and store.check(["methods differ"]):
            places = [store.get(f"method/{each}").decode() for each in range(world_size)]
    except dist.DistError as error:
        raise lost_store(error) from error
    if not met:
        raise LaunchError(f"rank(s) {missing} of {world_size} did not join the process group within {limit}.")
    if places:
        raise LaunchError(
            f"the processes have called different methods: {by_rank(places)}. Call the same one in every process, not "
            "under a condition that holds only in some, such as `if trainer.is_global_zero:`."
        )


def _not_called(store: Store, place: str, world_size: int) -> str:
    missing = ranks_missing(store, "joining", world_size)
    ended = [rank for rank in missing if store.check([f"ended/{rank}"])]
    return (
        f"{place} needs every process, and rank(s) {', '.join(map(str, ended))} of {world_size} have ended their "
        "script without calling it. Call it in every process, not under a condition that holds only in some, such as "
        "`if trainer.is_global_zero:`."
    )


class _Ended:
    """Whether a process has ended its script that is to join a run."""

    def __init__(self, store: Store) -> None:
        self._store, self._next = store, 0.0

    def are_noted(self) -> bool:
        """Whether one has; looks once in a second."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LOOK_SECONDS
        return self._store.check(["ended"])


_joined: dict[str, int] = {}
"""How many runs this process has joined, by the address of their store."""
_notes: list[Callable[[], None]] = []
"""A function that tells the other processes, when this one ends, that it joins no further run."""


def next_run(store: Store, rank: int) -> RunStore:
    """The part of ``store`` that belongs to the next run of process ``rank``, which joins it."""
    number, address = store.add(f"core/runs/{rank}", 1), address_of(store)
    run = _run(store, number)
    _joined[address] = _joined.get(address, 0) + 1
    if number != _joined[address]:  # it was started again: a note is one of its predecessor
        run.delete_key("ended")
    return run


def _run(store: Store, number: int) -> RunStore:
    return RunStore(f"core/run/{number}", store)


def tell_of_end(rank: int, store: Callable[[], Store]) -> None:
    """At this process's end, tell those that wait for it to join a further run; the newest call counts.

    Args:
        rank: Of this process.
        store: Returns the store of all runs.
    """
    process = os.getpid()

    def note() -> None:
        if os.getpid() != process or ended_by_failure():  # a fork of it; or what is shown is its failure
            return
        with suppress(dist.DistError, LaunchError):
            served = store()
            # The run's own limit, half an hour by default, would keep this process from ending.
            served.set_timeout(timedelta(seconds=END_REQUEST_SECONDS))
            run = _run(served, served.add(f"core/runs/{rank}", 0) + 1)
            # First who has ended, since the others look for the second note and then ask who it was.
            run.set(f"ended/{rank}", "")
            run.set("ended", "")

    while _notes:
        atexit.unregister(_notes.pop())
    _notes.append(note)
    atexit.register(note)


def ranks_missing(store: Store, point: str, world_size: int) -> list[int]:
    """The ranks that have not reached ``point``, by few requests if they are few of many."""

    def among(ranks: range) -> list[int]:
        if store.check([f"{point}/{rank}" for rank in ranks]):
            return []
        half = len(ranks) // 2
        return [*among(ranks[:half]), *among(ranks[half:])] if half else [*ranks]

    return among(range(world_size))


def end_saving(strategy: Strategy, board: Board | None, failed: bool) -> None:
    """Call :meth:`Strategy.end_saving`, and tell the others by ``board`` that this process writes until it returns."""
    if failed or board is None or type(strategy.checkpoint_io).wait is CheckpointIO.wait:
        strategy.end_saving(failed)  # no one waits for it, or it does not write in the background
        return
    with suppress(LaunchError):  # the store is gone, and with it who looks
        board.set(_key(strategy.global_rank), b"")
    try:
        strategy.end_saving()
    finally:
        with suppress(LaunchError):
            board.delete(_key(strategy.global_rank))


def wait_for_saves(board: Board, rank: int, others: Iterable[int], check: Callable[[], None] | None) -> bool:
    """Wait in process ``rank`` until none of the others writes a checkpoint; returns whether one did.

    Raises:
        LaunchError: One of them has ended meanwhile, or the store was lost; or from ``check``.
    """
    writing = [other for other in others if board.has(_key(other))]
    if writing:
        logger.warning("rank %s waits for rank(s) %s to write a checkpoint before it ends", rank, writing)
    for other in writing:
        watch = board.watch(other)
        while board.has(_key(other)):
            watch()
            if check is not None:
                check()
            time.sleep(SAVES_POLL_SECONDS)
    return bool(writing)


def _key(rank: int) -> str:
    return f"saving/{rank}"


class IsWaitedFor(Exception):
    """All others that are still running wait in a collective, which this process does not join any more.

    Args:
        seconds: How long this process has waited for them to end.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"waited for {seconds:.0f} s")
        self.seconds = seconds


class LooksForWaiting:
    """Looks now and then where the other processes are; called while this one waits for them to end too.

    Args:
        stacks: Asks the other processes.
        store: Of the run: only the first process that looks asks them.
        rank: Of this process.
        running: Returns the ranks that have not ended their part.

    """

    def __init__(self, stacks: Stacks, store: Store, rank: int, running: Callable[[], list[int]]) -> None:
        self._stacks, self._store, self._rank, self._running = stacks, store, rank, running
        self._begin = time.monotonic()
        self._next = self._begin + FIRST_LOOK_SECONDS
        self._before: dict[int, str] = {}

    def __call__(self) -> None:
        """Look, if it is time.

        Raises:
            IsWaitedFor: Those ranks have been waiting in the same calls for some seconds.
        """
        if time.monotonic() < self._next or not self._may_tell():
            return
        now = self._waiting()
        if now and now == self._before:
            raise IsWaitedFor(time.monotonic() - self._begin)
        self._before = now
        self._next = time.monotonic() + LOOKS_APART_SECONDS

    def _may_tell(self) -> bool:
        """Whether this process looks, and whether each collective needs it: one of a smaller group may not."""
        return num_groups() == 1 and self._store.compare_set("looks", "", str(self._rank)) == str(self._rank).encode()

    def _waiting(self) -> dict[int, str]:
        """Where each running process waits; empty if one of them does not wait."""
        found: dict[int, Whereabouts] = {each.rank: each for each in self._stacks.ask()}
        running = self._running()
        if not all(rank in found and found[rank].is_waiting for rank in running):
            return {}
        return {rank: found[rank].stack for rank in running}
