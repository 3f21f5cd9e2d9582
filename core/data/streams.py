"""Iterable data sets: each process's part of what all read, and workers that all give the same samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..logging import get_logger
from ..utilities.nested import leaves
from .rank_comparison import FACTS, facts_of_items
from .seeds import Apart, mix, seed_host
from .shards import Real, Share

logger = get_logger(__name__)


TO_BEGIN = (
    "Begin at the start in each __iter__. For other data in each pass, give the data set set_epoch(epoch), which is "
    "called before a pass with its number, and begin there"
)


class Begun:
    """Warns where a pass goes on with the iterator of the pass before, which a resumed run cannot do."""

    def __init__(self) -> None:
        self._newest: int | None = None

    def check(self, source: Any, iterator: Any) -> None:
        """A pass over ``source`` reads ``iterator``."""
        known, self._newest = self._newest, id(iterator)
        if known == id(iterator) and any(value is iterator for value in getattr(source, "__dict__", {}).values()):
            logger.warning_once(
                "data: %s keeps its iterator, so each pass goes on where the one before stopped. A resumed run does "
                "not: its first pass begins at the start. %s",
                type(source).__name__,
                TO_BEGIN,
            )


class ShardedStream(IterableDataset[Any]):
    """This process's items of a stream that is the same in every process.

    Each worker of a process reads what the same worker reads in the other processes. The stream draws from generators
    that are seeded alike everywhere, apart from those that the rest of the process draws from.

    Args:
        dataset: The user's own.
        batch_size: Items in a batch; ``None`` where each item is passed on by itself.
        drop_last: Whether an incomplete batch is left out.
        share: Which part is this process's.
        is_compared: Whether what is read first is noted, for a comparison of the processes.
    """

    def __init__(
        self,
        dataset: IterableDataset[Any],
        batch_size: int | None,
        drop_last: bool,
        share: Share,
        is_compared: bool = False,
    ) -> None:
        self.dataset, self.batch_size, self.drop_last, self.share = dataset, batch_size, drop_last, share
        self._is_compared, self._begun = is_compared, Begun()
        self.offset = 0
        """How many items of the stream the next pass leaves out."""
        # Shared memory: workers that live on after a pass read the next pass's seed there.
        self.seed: Tensor = torch.zeros((), dtype=torch.int64)
        self.seed.share_memory_()  # type: ignore[no-untyped-call]
        self.has_begun = torch.zeros((), dtype=torch.bool)
        """Whether the newest pass reads it; also in shared memory."""
        self.has_begun.share_memory_()  # type: ignore[no-untyped-call]
        self.facts = torch.zeros(FACTS, dtype=torch.int64)
        """What was read first, by the first worker; also in shared memory."""
        self.facts.share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[Any]:
        self.has_begun.fill_(True)
        share = self.share
        units = share.shards if self.batch_size is None else share.global_size(self.batch_size)
        info = get_worker_info()
        seed = mix(int(self.seed), 0 if info is None else info.id)
        stream = _isolated(self.dataset, seed, units, self.offset, self._begun)
        first: list[Any] = []
        looks = self._is_compared and (info is None or info.id == 0) and not self.facts.any()
        for items in stream:
            if looks and not first:
                self.facts.copy_(torch.tensor(facts_of_items(items)))
            first = first or items
            yield from self._deal_items(items, first, units) if self.batch_size else self._deal_whole(items, first)

    def _deal_items(self, items: list[Any], first: list[Any], units: int) -> Iterator[Any]:
        share, batch_size = self.share, self.batch_size
        assert batch_size is not None
        is_complete = len(items) == units
        if not is_complete:
            items = items[: share.kept(len(items), batch_size, self.drop_last)]
        counts = share.counts(len(items), batch_size)
        part = share.part(counts, items, first)
        if part and not is_complete and share.shards > 1:
            part[-1] = _Marked(part[-1], share.real(counts, len(items)))
        return iter(part)

    def _deal_whole(self, items: list[Any], first: list[Any]) -> Iterator[Any]:
        share, size = self.share, len(items)
        counts = [1] * share.shards if share.even else [int(shard < size) for shard in range(share.shards)]
        part = share.part(counts, items, first)
        if part and size < share.shards:
            part = [_Marked(part[0], (None,) * size + (0,) * (share.shards - size))]
        return iter(part)

    def __getattr__(self, name: str) -> Any:
        # Not the state: what it says of the position is not this part's.
        if name in ("dataset", "state_dict", "load_state_dict") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


def stream_steps(total: int, batch_size: int | None, drop_last: bool, share: Share, workers: int) -> int:
    """How many batches a process has of a stream of ``total`` items that its workers divide evenly among them."""
    units = share.shards if batch_size is None else share.global_size(batch_size)
    workers = max(workers, 1)
    of_workers = (-(-(total - worker) // workers) for worker in range(workers))
    return sum(share.steps(items, units, batch_size, drop_last) for items in of_workers)


class _Marked:
    """The last item of an incomplete global batch, with what of that batch is not padding."""

    __slots__ = ("item", "real")

    def __init__(self, item: Any, real: Real) -> None:
        self.item, self.real = item, real


class MarkedCollate:
    """A loader's ``collate_fn`` for the items of a :class:`ShardedStream`.

    Args:
        collate: The user's own.
        in_pairs: Whether a batch comes with what of its global batch is not padding, or ``None`` where all is.
    """

    def __init__(self, collate: Callable[[Any], Any], in_pairs: bool) -> None:
        self.collate, self.in_pairs = collate, in_pairs

    def __call__(self, data: Any) -> Any:
        """The batch of ``data``."""
        real = None
        if isinstance(data, _Marked):
            data, real = data.item, data.real
        elif isinstance(data, list) and data and isinstance(data[-1], _Marked):
            real = data[-1].real
            data = [*data[:-1], data[-1].item]
        batch = self.collate(data)
        return (batch, real) if self.in_pairs else batch


def _isolated(dataset: IterableDataset[Any], seed: int, size: int, offset: int, begun: Begun) -> Iterator[list[Any]]:
    """``size`` items at a time, drawn with their own generators."""
    apart = Apart(goes_on=True)
    with apart:
        seed_host(seed)
        stream = iter(dataset)
        begun.check(dataset, stream)
        next(islice(stream, offset, offset), None)  # skips so many
    while True:
        with apart:
            items = list(islice(stream, size))
        if not items:
            return
        yield items


def watched(batches: Iterator[Any], loader: Any) -> Iterator[Any]:
    """``batches``, with a warning in process 0 if the first ones of two workers are equal.

    Args:
        batches: The batches of a pass from its start.
        loader: What they are read from; only a DataLoader of an iterable data set with several workers is watched.
    """
    if not isinstance(loader, DataLoader) or not isinstance(loader.dataset, IterableDataset) or loader.num_workers < 2:
        return batches
    return _compared(batches, loader)


def _compared(batches: Iterator[Any], loader: DataLoader[Any]) -> Iterator[Any]:
    # The workers take turns: the first two batches come from two of them.
    first = list(islice(batches, 1))
    yield from first
    second = list(islice(batches, 1))
    if first and second and _equal(first[0], second[0]):
        dataset = loader.dataset
        inner = type(getattr(dataset, "dataset", dataset)).__name__
        logger.warning_once(
            "data: the first batches of two workers are equal, so each of the %d workers seems to give every sample of "
            "%s: an epoch has each sample %d times. In its __iter__, give each worker its part by "
            "torch.utils.data.get_worker_info(), or set num_workers to 0 or 1",
            loader.num_workers,
            inner,
            loader.num_workers,
        )
    del first
    yield from second
    del second
    yield from batches


def _equal(one: Any, other: Any) -> bool:
    """Whether both have the same tensors, and at least one tensor has more than one distinct value."""
    pairs = [[leaf for _, leaf in leaves(each) if isinstance(leaf, torch.Tensor)] for each in (one, other)]
    if not pairs[0] or len(pairs[0]) != len(pairs[1]):
        return False
    is_telling = any(tensor.numel() > 1 and bool((tensor != tensor.flatten()[0]).any()) for tensor in pairs[0])
    return is_telling and all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))
