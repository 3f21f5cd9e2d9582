"""Saving with those processes that call it: which ones do is found out in the store of the run, not by a collective.

A collective would wait for the others as long as its time limit, and Accelerate's scripts save in process 0 only.
Process 0 leads: it waits some seconds for the others, then goes on without those that are absent.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from ..checkpoints.agreement import run_on_each_rank
from ..errors import CheckpointError, LaunchError
from .base import Strategy
from .calls import is_user_frame, user_frame
from .parallel import ProcessGroupStrategy
from .store.notes import Board
from .time_limits import NEEDED_SECONDS, OPTIONAL_SECONDS

T = TypeVar("T")

logger = logging.getLogger(__name__)

DEPTH = 8
"""Frames of the user's code by which processes recognize the same call."""


class Meeting:
    """The processes that have made the same call, which process 0 leads.

    Two calls are the same if they come from the same lines of the user's code, the n-th time in each process.

    Args:
        strategy: Of the run.
        name: The method that was called, for messages.
        needs_all: Whether every process has to call it; by default if the strategy divides the state among them.
        patience: How many seconds process 0 waits for the others where it can do without them.
        is_ending: Whether an error ends the run. It may be of one process alone: another than process 0 waits for that
            one no longer than ``patience``, and process 0 does without those that have ended, if it can.

    Raises:
        CheckpointError: It needs every process, and some did not call it in time. Raised in those that did.
    """

    def __init__(
        self,
        strategy: Strategy,
        name: str,
        needs_all: bool | None = None,
        patience: float = OPTIONAL_SECONDS,
        is_ending: bool = False,
    ) -> None:
        self._strategy, self.name = strategy, name
        self.is_leader = strategy.is_global_zero
        self.needs_all = strategy.saving_is_collective if needs_all is None else needs_all
        self.absent: tuple[int, ...] = ()
        """The ranks of the processes that have not come."""
        self._phase, self._patience, self._is_ending = 0, patience, is_ending
        board = strategy.board if isinstance(strategy, ProcessGroupStrategy) else None
        self._board: Board | None = board if strategy.world_size > 1 else None
        if self._board is not None:
            site = _call_site()
            number = self._board.meetings[site] = self._board.meetings.get(site, -1) + 1
            self._place = f"meeting/{site}/{number}"
            self.absent = self._lead(self._board, site) if self.is_leader else self._come(self._board)
        self.is_late = strategy.global_rank in self.absent
        """Whether process 0 has gone on without this process."""
        if self.absent and self.needs_all:
            raise CheckpointError(
                f"{name}: rank(s) {', '.join(map(str, self.absent))} of {strategy.world_size} did not call it within "
                f"{NEEDED_SECONDS:g} s. Strategy {strategy.name!r} with {type(strategy.checkpoint_io).__name__} needs "
                f"every process for it: call {name} in every process, not under `if is_main_process:`."
            )

    # -- who is there --------------------------------------------------------------------------------------------

    def _lead(self, board: Board, site: str) -> tuple[int, ...]:
        others = range(1, self._strategy.world_size)
        seconds = OPTIONAL_SECONDS if site in board.alone else self._patience
        seconds = NEEDED_SECONDS if self.needs_all else seconds
        try:
            absent = tuple(board.absent(self._place, others, seconds, goes_on=True))
        except LaunchError:
            if self.needs_all or not self._is_ending:
                raise
            absent = tuple(rank for rank in others if not board.has(f"{self._place}/{rank}"))
        board.set(f"{self._place}/absent", pickle.dumps(absent))
        # Process 0 waits the full time only once if the other processes never save at this place.
        (board.alone.add if len(absent) == len(others) else board.alone.discard)(site)
        return absent

    def _come(self, board: Board) -> tuple[int, ...]:
        own = f"{self._place}/{self._strategy.global_rank}"
        board.set(own, b"")
        if self._is_ending and not board.wait(f"{self._place}/absent", self._patience, 0, goes_on=True):
            board.delete(own)
            raise CheckpointError(
                f"{self.name}: rank 0, which leads it, has not called it within {self._patience:g} s, as where the "
                f"error is one of rank {self._strategy.global_rank} alone."
            )
        if not board.wait(f"{self._place}/absent", NEEDED_SECONDS, 0):
            logger.warning("%s: rank %s waits for rank 0 to call it", self.name, self._strategy.global_rank)
        absent: tuple[int, ...] = pickle.loads(self._receive(board, f"{self._place}/absent", 0))
        return absent

    def _receive(self, board: Board, key: str, rank: int) -> bytes:
        if not board.wait(key, board.timeout.total_seconds(), rank):
            raise CheckpointError(
                f"{self.name}: rank {self._strategy.global_rank} has waited {board.timeout} for another process. Call "
                f"{self.name} in rank 0, or in every process."
            )
        return board.get(key)

    # -- what they do --------------------------------------------------------------------------------------------

    def gather(self, obj: T, to_all: bool = True) -> list[T | None]:
        """``obj`` of each process that has come, by rank; ``None`` for the absent.

        Args:
            obj: What this process has.
            to_all: Whether every process needs all; if not, those other than process 0 only get their own.
        """
        strategy, board = self._strategy, self._board
        if board is None:
            return [*strategy.all_gather_object(obj)]
        place, self._phase = f"{self._place}/{self._phase}", self._phase + 1
        if not self.is_leader:
            board.set(f"{place}/{strategy.global_rank}", pickle.dumps(obj))
            if not to_all:
                return [obj if rank == strategy.global_rank else None for rank in range(strategy.world_size)]
            everything: list[T | None] = pickle.loads(self._receive(board, f"{place}/all", 0))
            return everything
        gathered: list[T | None] = [obj, *[None] * (strategy.world_size - 1)]
        for rank in range(1, strategy.world_size):
            if rank not in self.absent:
                gathered[rank] = pickle.loads(self._receive(board, f"{place}/{rank}", rank))
                board.delete(f"{place}/{rank}")
        if to_all and len(self.absent) < strategy.world_size - 1:
            # It stays there: each of the others reads it when it comes.
            board.set(f"{place}/all", pickle.dumps(gathered))
        return gathered

    def run(self, function: Callable[[], T]) -> list[T | None]:
        """Call ``function`` in each process that has come; what it returned, by rank, ``None`` for the absent.

        Raises:
            CoreError: As :func:`core.checkpoints.run_on_each_rank`.
        """
        return run_on_each_rank(function, lambda own: [each or (None, None) for each in self.gather(own)])

    def lead(self, function: Callable[[], T]) -> T:
        """Call ``function`` in process 0; what it returned, in each process that has come.

        Raises:
            CoreError: As :meth:`run`.
        """
        result: Any = self.run(lambda: function() if self.is_leader else None)[0]
        returned: T = result
        return returned

    def save(
        self, checkpoint: Callable[[], dict[str, Any]], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write ``checkpoint()``: process 0 alone if it has the whole state, else each process its part.

        Raises:
            CheckpointError: It could not be written; raised in each process that has come.
        """
        strategy = self._strategy
        options = () if storage_options is None else (storage_options,)
        if self.needs_all or strategy.world_size == 1:
            strategy.save_checkpoint(checkpoint(), path, *options)
        else:
            self.lead(lambda: Strategy.save_checkpoint(strategy, checkpoint(), path, *options))


def _call_site() -> str:
    """Where the user's code makes the call: lines of code, from the innermost outwards."""
    frame: FrameType | None = user_frame()
    lines: list[str] = []
    while frame is not None and is_user_frame(frame) and len(lines) < DEPTH:
        # The file's name alone: its folder may be another one on another machine.
        lines.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}")
        # What has started the script may differ between processes.
        frame = None if frame.f_code.co_name == "<module>" else frame.f_back
    return "<".join(lines)
