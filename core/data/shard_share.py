"""The part of a global batch that each process takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import TypeVar

import attrs

__all__ = ["Share"]

T = TypeVar("T")


@attrs.frozen
class Share:
    """One of ``shards`` parts of the data.

    All processes read the data in one order. It is cut into global batches, and each global batch is divided into
    contiguous parts, of which part ``shard`` is this process's: so what the processes have, joined by rank, is in
    order. A global batch is ``shards`` batches of the loader, or with ``split`` one of them.
    """

    shards: int = 1
    shard: int = 0
    even: bool = True
    """Whether every process has the same number of batches, padded where need be."""
    split: bool = False
    """Whether one batch of the loader is divided."""
    evaluation: bool = False
    """Whether ``drop_last`` drops what one process would drop, instead of each incomplete global batch."""

    def global_size(self, batch_size: int) -> int:
        """Items in a complete global batch, where the loader's batches have ``batch_size``."""
        return batch_size if self.split else batch_size * self.shards

    def kept(self, size: int, batch_size: int, drop_last: bool) -> int:
        """How many of the ``size`` items of the last, incomplete global batch are used."""
        if not drop_last:
            return size
        if self.split or (self.even and not self.evaluation and self.shards > 1):
            return 0
        return size - size % batch_size

    def counts(self, size: int, batch_size: int) -> list[int]:
        """Of a global batch of ``size`` items: how many items each process takes, with padding."""
        if self.even:
            return [-(-size // self.shards)] * self.shards
        if self.split:
            return [size // self.shards + (shard < size % self.shards) for shard in range(self.shards)]
        return [min(max(size - shard * batch_size, 0), batch_size) for shard in range(self.shards)]

    def part(self, counts: Sequence[int], items: Sequence[T], fill: Sequence[T]) -> list[T]:
        """This process's part of ``items``, padded with those of ``fill``."""
        start = sum(counts[: self.shard])
        part = list(items[start : start + counts[self.shard]])
        missing = counts[self.shard] - len(part)
        if missing:
            skipped = max(start - len(items), 0)
            part += islice(cycle(fill), skipped, skipped + missing)
        return part

    @staticmethod
    def real(counts: Sequence[int], size: int) -> tuple[int, ...]:
        """Of a global batch of ``size`` items: how many items of each process are no padding; they come first."""
        found = []
        for count in counts:
            found.append(min(max(size, 0), count))
            size -= count
        return tuple(found)
