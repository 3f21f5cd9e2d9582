"""The other processes of a run: whether one that is waited for has ended."""

from __future__ import annotations

import os
import platform
import time

from core.strategies.board import Board

__all__ = ["Peers"]

LOOK_SECONDS = 1.0


class Peers:
    """Where the processes of a run are, so that none waits for one of its machine that has been killed.

    Only Linux tells; elsewhere, and for processes of other machines, nothing is known.

    Args:
        board: Of the run.
        place: On the board, the same for all.
        rank: Of this process.
    """

    def __init__(self, board: Board, place: str, rank: int) -> None:
        self._board, self._place, self._rank = board, place, rank
        self._machine = _machine()
        board.set_once(f"{place}/process/{rank}", f"{os.getpid()} {self._machine}".encode())

    def wait(self, key: str, rank: int, seconds: float) -> bool:
        """Wait for the note ``key`` of process ``rank``; whether it is there, within the time and before that ends."""
        deadline = time.monotonic() + seconds
        while not self._board.wait(key, max(0.0, min(LOOK_SECONDS, deadline - time.monotonic()))):
            if time.monotonic() > deadline or self.has_ended(rank):
                return self._board.has(key)
        return True

    def has_ended(self, rank: int) -> bool:
        """Whether process ``rank`` is known to have ended."""
        key = f"{self._place}/process/{rank}"
        number, _, machine = (self._board.get(key).decode() if self._board.has(key) else "").partition(" ")
        return bool(self._machine) and machine == self._machine and not _runs(int(number))


def _machine() -> str:
    """Processes with the same text see each other's IDs; empty if that cannot be said."""
    try:
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _runs(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
