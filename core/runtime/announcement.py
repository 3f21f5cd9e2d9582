"""The debug switch's exchange: every process announces a collective in the store of the run before it begins."""

from __future__ import annotations

import logging
import time

from core.errors import LaunchError
from core.strategies.base import Strategy
from core.strategies.board import Board
from core.strategies.parallel import ProcessGroupStrategy

__all__ = ["announce"]

PATIENCE_SECONDS = 20.0
"""After how many seconds a warning names the processes that are waited for."""

logger = logging.getLogger(__name__)


def announce(strategy: Strategy, what: str, facts: str) -> list[str] | None:
    """Compare ``facts`` over all processes; see :meth:`Strategy.differing`.

    Not by a collective, where the run has a store: a process that is in another collective, such as that of a backward
    pass, or in none, is named and not mixed up with this one.

    Args:
        strategy: Of the run.
        what: The collective, for messages.
        facts: What to compare.

    Raises:
        LaunchError: A process has not announced a collective within the strategy's ``timeout``, or has failed.
    """
    board = strategy.board if isinstance(strategy, ProcessGroupStrategy) else None
    if board is None:
        return strategy.differing(facts)
    number = board.meetings["announced"] = board.meetings.get("announced", -1) + 1
    board.set(f"announced/{number}/{strategy.global_rank}", facts.encode())
    _wait(board, strategy.world_size, f"announced/{number}", f"rank {strategy.global_rank} is in {what}")
    given = [board.get(f"announced/{number}/{rank}").decode() for rank in range(strategy.world_size)]
    if number:  # which all have read, since they are here
        board.delete(f"announced/{number - 1}/{strategy.global_rank}")
    return given if len(set(given)) > 1 else None


def _wait(board: Board, world_size: int, place: str, situation: str) -> None:
    absent = list(range(world_size))
    begin = time.monotonic()
    limit = board.timeout.total_seconds()
    for seconds in (min(PATIENCE_SECONDS, limit), limit):
        absent = [
            rank
            for rank in absent
            if not board.wait(f"{place}/{rank}", max(begin + seconds - time.monotonic(), 0), rank)
        ]
        if not absent:
            return
        if seconds < limit:
            logger.warning("%s, and waits for rank(s) %s", situation, ", ".join(map(str, absent)))
    raise LaunchError(
        f"{situation} (debug=True); rank(s) {', '.join(map(str, absent))} did not call a collective of the Runtime "
        f"within {board.timeout}. Every process has to make the same calls in the same order."
    )
