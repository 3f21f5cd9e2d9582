"""Whom a process exchanges with, by number; pure functions."""

from __future__ import annotations

__all__ = ["ring_neighbours", "shift_one_peer"]


def shift_one_peer(rank: int, size: int, exchanges: int) -> int:
    """Whom ``rank`` is paired with after so many exchanges; each of the first half meets all of the second in turn.

    Args:
        rank: From 0.
        size: An even number of processes.
        exchanges: How many there were before.
    """
    half = size // 2
    if rank < half:
        return (exchanges + rank) % half + half
    return (rank - half - exchanges) % half


def ring_neighbours(rank: int, size: int) -> tuple[int, int]:
    """The left and the right neighbour of ``rank``; of two processes both are the other one."""
    return (rank - 1) % size, (rank + 1) % size
