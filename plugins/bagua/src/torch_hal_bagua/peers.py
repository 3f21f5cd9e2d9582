"""The ranks that a process exchanges with; pure functions."""

from __future__ import annotations

__all__ = ["ring_neighbours", "shift_one_peer"]


def shift_one_peer(rank: int, size: int, exchanges: int) -> int:
    """The peer of ``rank`` after ``exchanges`` exchanges; each rank of the first half meets all of the second in turn.

    Args:
        rank: Starts at 0.
        size: The number of processes, which is even.
        exchanges: The number of exchanges so far.
    """
    half = size // 2
    if rank < half:
        return (exchanges + rank) % half + half
    return (rank - half - exchanges) % half


def ring_neighbours(rank: int, size: int) -> tuple[int, int]:
    """The left and the right neighbour of ``rank``; with two processes, both are the other process."""
    return (rank - 1) % size, (rank + 1) % size
