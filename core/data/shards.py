"""Sharding of a map-style data set: the part of each global batch that a process takes, fetched by index."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, cycle, islice
from typing import Any, TypeVar

import attrs
from torch import Generator
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler

from ..errors import ConfigurationError
from ..logging import get_logger
from .seeds import SeededIndex, mix, seeded

logger = get_logger(__name__)

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
        """For a global batch of ``size`` items: how many items each process takes, padding included."""
        if self.even:
            return [-(-size // self.shards)] * self.shards
        if self.split:
            return [size // self.shards + (shard < size % self.shards) for shard in range(self.shards)]
        return [min(max(size - shard * batch_size, 0), batch_size) for shard in range(self.shards)]

    def steps(self, total: int, units: int, batch_size: int | None, drop_last: bool) -> int:
        """How many batches this process has of ``total`` items, ``units`` of which are a complete global batch."""
        complete, rest = divmod(total, units)
        if batch_size is None:
            return complete + int(rest > 0 and (self.even or self.shard < rest))
        kept = self.kept(rest, batch_size, drop_last)
        return complete + int(self.counts(kept, batch_size)[self.shard] > 0)

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
        """For a global batch of ``size`` items: how many items of each process are real; padding follows them."""
        found = []
        for count in counts:
            found.append(min(max(size, 0), count))
            size -= count
        return tuple(found)


Real = tuple[int | None, ...]
"""For each part of a global batch: how many of its leading items are no padding; ``None`` for all of them."""


def index_source(loader: DataLoader[Any]) -> tuple[Any, int | None, bool]:
    """What ``loader`` draws its indices from, the size of the batches that torch makes of them, and ``drop_last``.

    The size is ``None`` where torch makes none: from a batch sampler of the user's own, or without batches. With
    ``batch_size=None`` a ``BatchSampler`` may be the sampler: the data set then gets the indices of a batch at once.
    """
    batches: Any = loader.batch_sampler
    if batches is None:
        batches = loader.sampler
        if type(batches) is not BatchSampler:
            return batches, None, False
    if type(batches) is BatchSampler:
        return batches.sampler, batches.batch_size, batches.drop_last
    return batches, None, False


class ShardedSampler(Sampler[Any]):
    """This process's indices of each global batch, in the place of a loader's sampler or batch sampler.

    The attributes that are set from outside hold for the next pass.

    Args:
        source: Sampler, or what gives all indices of a batch.
        batch_size: Items in a batch that is made of the sampler's indices; ``None`` where ``source`` gives batches.
        drop_last: Whether an incomplete batch is left out.
        share: Which part is this process's.
        replaced: The user's own sampler or batch sampler, whose other attributes it has.
        is_batches: Whether ``source`` gives batches of indices; it may anyway, as lists.

    Raises:
        ConfigurationError: Batches are to be split, and cannot be.
    """

    def __init__(
        self,
        source: Iterable[Any],
        batch_size: int | None,
        drop_last: bool,
        share: Share,
        replaced: Any,
        is_batches: bool,
    ) -> None:
        self.replaced = replaced
        self.source = source
        self.batch_size, self.drop_last, self.share, self.is_batches = batch_size, drop_last, share, is_batches
        self.order_seed: int | None = None
        """The seed of an order without its own generator; ``None`` to draw it as plain torch does."""
        self.reseed = False
        """Whether an order is drawn with :attr:`order_seed` even by a sampler with its own generator."""
        self.worker_seed: int | None = None
        """What the seed that a worker gets with each batch is made of; ``None`` where no worker fetches."""
        self.seed_shard = share.shard
        """Which part's seeds its workers get; processes that fetch other items get other seeds."""
        self.offset = 0
        """Where the pass starts, in indices of ``source``, or batches where it gives those."""
        self.primes = False
        """Whether the next iterator first yields ``None``, once the order is drawn up to :attr:`offset`."""
        self.primer: Iterator[Any] | None = None
        self.has_begun = False
        """Whether the order of the pass is drawn."""
        self.head: list[Any] = []
        """The first items of ``source`` in the pass, for all processes."""
        self.kept: list[Any] | None = None
        """This process's indices of each batch of the pass, where they are asked for."""
        self.real: dict[int, Real] = {}
        """For each incomplete global batch, by its number in the pass: its items that are not padding."""
        if share.split and share.shards > 1:
            check_split(batch_size, is_batches, share.shards)
        self.units = 1 if share.split or share.shards == 1 else share.shards
        """How far a step moves in ``source``, in its own units."""
        if batch_size is not None:
            self.units = share.global_size(batch_size)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "replaced":  # of a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self.replaced, name)

    # -- length --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.steps(0)

    def steps(self, offset: int) -> int:
        """How many batches this process has in a pass from ``offset`` on.

        Raises:
            TypeError: ``source`` has no length.
        """
        left = max(len(self.source) - offset, 0)  # type: ignore[arg-type]
        return self.share.steps(left, self.units, self.batch_size, self.drop_last)

    # -- a pass --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        self.real = {}
        if self.kept is not None:
            self.kept = []
        primes, self.primes = self.primes, False
        indices = self._pass(self.offset, self.order_seed, primes)
        if primes:
            self.primer = indices
        elif self.worker_seed is not None:
            return self._with_seeds(indices, self.worker_seed, self.offset // self.units)
        return indices

    def _with_seeds(self, indices: Iterator[Any], seed: int, number: int) -> Iterator[Any]:
        for taken, index in enumerate(indices):
            yield SeededIndex(index, mix(seed, self.seed_shard, number + taken))

    def _pass(self, offset: int, order_seed: int | None, primes: bool) -> Iterator[Any]:
        self.has_begun = True
        stream: Iterator[Any] = iter(self._draw(order_seed))
        first: list[Any] = []
        self.head = []
        if offset:
            first = self.head = list(islice(stream, min(self.units, offset)))
            next(islice(stream, offset - len(first), offset - len(first)), None)  # skips so many
        if primes:  # not after the next element is drawn: a sampler may draw again at its end
            drawn = [] if offset else list(islice(stream, 1))  # the first one draws the order
            yield None
            stream = chain(drawn, stream)
        deal = self._deal_items if self.batch_size is not None else self._deal_whole
        number = 0
        while elements := list(islice(stream, self.units)):
            first = self.head = first or elements
            index = deal(number, elements, first)
            if index is not None:
                if self.kept is not None:
                    self.kept.append(index)
                yield index
            number += 1

    def _draw(self, seed: int | None) -> Iterable[Any]:
        """The order of the pass, drawn at once where it is drawn from a seed."""
        source: Any = self.source
        if seed is None or not hasattr(source, "__len__"):
            return self.source
        if type(source) is SequentialSampler:
            return range(len(source))
        if type(source) is RandomSampler and (source.generator is None or self.reseed):
            source = copy.copy(source)
            source.generator = Generator().manual_seed(seed)
            return list(source)
        with seeded(seed):
            drawn = iter(source)
            order = list(islice(drawn, len(source)))
            return order + list(read_end(drawn, len(order)))

    def _deal_items(self, number: int, items: Sequence[Any], first: Sequence[Any]) -> list[Any] | None:
        share, batch_size = self.share, self.batch_size
        assert batch_size is not None
        if len(items) == self.units:
            size = self.units // share.shards
            return list(items[share.shard * size : (share.shard + 1) * size])
        items = items[: share.kept(len(items), batch_size, self.drop_last)]
        counts = share.counts(len(items), batch_size)
        if share.shards > 1:
            self.real[number] = share.real(counts, len(items))
        return share.part(counts, items, first) or None

    def _deal_whole(self, number: int, elements: Sequence[Any], first: Sequence[Any]) -> Any:
        share = self.share
        if share.shards == 1:
            return elements[0]
        if share.split:
            return self._split(number, elements[0])
        if self.is_batches or all(isinstance(each, list) for each in elements):
            real: Real = tuple(map(len, elements))
            if len(elements) < share.shards or len(set(real)) > 1:
                self.real[number] = real + (0,) * (share.shards - len(elements))
        elif len(elements) < share.shards:
            self.real[number] = (None,) * len(elements) + (0,) * (share.shards - len(elements))
        if len(elements) == share.shards:
            return elements[share.shard]
        counts = [1] * share.shards if share.even else [int(r < len(elements)) for r in range(share.shards)]
        part = share.part(counts, elements, first)
        return part[0] if part else None

    def _split(self, number: int, batch: Sequence[Any]) -> list[Any]:
        share, size = self.share, len(batch)
        if not share.even and size < share.shards:
            raise ConfigurationError(
                f"split_batches=True, even_batches=False: batch {number} has {size} item(s), which {share.shards} "
                "processes cannot divide. Use even_batches=True, or larger batches."
            )
        counts = share.counts(size, -(-size // share.shards))
        if size % share.shards:
            self.real[number] = share.real(counts, size)
        return share.part(counts, batch, batch)


def check_split(batch_size: int | None, is_batches: bool, shards: int) -> None:
    """Reject batches that cannot be split.

    Raises:
        ConfigurationError: The loader makes no batches, or their size is not divisible by the number of processes.
    """
    if batch_size is None and not is_batches:
        raise ConfigurationError(
            "split_batches=True: the loader has batch_size=None, and so no batches to divide. Give it a batch size, or "
            "leave split_batches out."
        )
    if batch_size is not None and batch_size % shards:
        raise ConfigurationError(
            f"split_batches=True: batch_size={batch_size} is not divisible by {shards} processes. Choose a batch size "
            f"such as {max(batch_size // shards, 1) * shards}."
        )


def read_end(batches: Iterator[Any], number: int) -> Iterator[Any]:
    """Read the end of a pass, as a loop does, where plain torch draws numbers; yields nothing.

    A further batch is a warning, and the pass is left there.

    Args:
        batches: What is left of the pass: batches, or what a sampler draws.
        number: How many there were before, which is its length.
    """
    for _ in batches:
        logger.warning_once(
            "data: a pass goes on after its length, %d, at which an epoch of the Trainer ends. Let the __len__ of its "
            "data or sampler be exact, or raise TypeError: then the end is found by reading ahead",
            number,
        )
        break
    yield from ()
