"""Whether the other processes wait for one that has ended its part, and so would wait in vain.

A script that returns early on some ranks leaves the others in a collective that these never join.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch.distributed.distributed_c10d import Store

from ...utilities.torch_private import num_groups
from .stack_exchange import Stacks, Whereabouts

__all__ = ["IsWaitedFor", "LooksForWaiting"]

FIRST_LOOK_SECONDS = 4.0
"""How long a process waits for the others before it looks where they are."""
LOOKS_APART_SECONDS = 4.0
"""A process that is still in the same call after so long does not come out of it."""


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
