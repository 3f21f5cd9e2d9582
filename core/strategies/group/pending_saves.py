"""Processes that leave the process group wait for one that still writes a checkpoint in the background.

After a signal, a launcher ends all processes as soon as the first one has ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from ...checkpoints.base import CheckpointIO
from ...errors import LaunchError
from ..base import Strategy
from ..store.notes import Board

__all__ = ["end_saving", "wait_for_saves"]

LOOK_SECONDS = 0.2
"""How often a process looks whether another one still writes."""

logger = logging.getLogger(__name__)


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
            time.sleep(LOOK_SECONDS)
    return bool(writing)


def _key(rank: int) -> str:
    return f"saving/{rank}"
