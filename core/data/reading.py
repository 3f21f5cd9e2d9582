"""The batches of one pass over a loader: which, in which order, from where on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from itertools import chain, islice
from typing import Any

from torch import Generator
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

from ..errors import CheckpointError, ConfigurationError, WrongTypeError
from ..logging import get_logger
from ..random import get_host_rng_state
from ..utilities.torch_private import DataLoaderIterator, clear_kept_iterator, data_iterator, kept_iterator
from .active_passes import Start
from .loader_structure import keeps_epoch_from_workers
from .rank_comparison import facts_of_indices
from .seeds import PassSeeds, draw_seed, mix, replayed, seeded
from .shards import Real, ShardedSampler, Share, check_split, index_source
from .streams import Begun, MarkedCollate, ShardedStream, stream_steps
from .workers import Workers

logger = get_logger(__name__)


class Reading:
    """Reads any iterable of batches as it is.

    Args:
        loader: The user's own.
    """

    units = 1
    """How far a batch moves in the data, in its own units."""
    loader: Any
    """What is iterated."""
    knows_length = True
    """Whether :meth:`steps` is certain, not what the data set says of itself."""
    marks = False
    """Whether a batch comes as a pair, with what of its global batch is not padding."""
    workers: Workers
    """The workers of the run, which the prepared loader knows."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.own: Any = loader
        """The user's own loader."""
        self._begun = Begun()

    def begin(self, start: Start, seeds: PassSeeds | None) -> Iterator[Any]:
        """The batches of a pass."""
        with start.replay():
            batches: Iterator[Any] = self.workers.iterate(self.loader)
            self._begun.check(self.loader, batches)
            for _ in range(start.batches):
                start.notes(next(batches, None), self.own)
        return batches

    def steps(self, offset: int) -> int:
        """How many batches a pass has from ``offset`` on.

        Raises:
            TypeError: It is not known.
        """
        return max(len(self.loader) - offset, 0)

    def real(self, number: int) -> Real | None:
        """For batch ``number`` from the start of the pass: what of its global batch is not padding."""
        return None

    def facts(self) -> list[int]:
        """What distinguishes the data that the pass began with from other data; all processes are to read the same."""
        return []

    def keep_indices(self) -> None:
        """Keep the indices of each batch's items, in the passes that begin from now on."""

    def indices(self, number: int) -> list[Any] | None:
        """The indices of this process's batch ``number`` of the pass in the data set; ``None`` if there are none."""
        return None

    def memory(self) -> dict[str, Any]:
        """The state from earlier passes that the next pass depends on."""
        return {"drawn": False, "base": 0}

    def remember(self, memory: Mapping[str, Any]) -> None:
        """Take back what :meth:`memory` gave."""

    def inner_state(self) -> dict[str, Any] | None:
        """The state of a loader that can find its position by itself, else ``None``."""
        return None

    def batch_seed(self, number: int) -> int | None:
        """The seed for batch ``number`` of the pass; ``None`` to leave the generators as they are."""
        return None


class MapReading(Reading):
    """Reads a ``DataLoader`` of a map-style data set, by index.

    Args:
        loader: The user's own.
        share: Which part of its batches.
        seed_shard: Which part's random numbers the fetched items draw; of the processes that take the same, one.
        is_shared: Whether other processes fetch too, and draw other numbers.
    """

    def __init__(self, loader: DataLoader[Any], share: Share, seed_shard: int, is_shared: bool) -> None:
        super().__init__(loader)
        source, batch_size, drop_last = index_source(loader)
        replaced = "sampler" if loader.batch_sampler is None else "batch_sampler"
        own = getattr(loader, replaced)
        self.sampler = ShardedSampler(source, batch_size, drop_last, share, own, loader.batch_sampler is not None)
        self.sampler.seed_shard = seed_shard
        self.share, self.units = share, self.sampler.units
        self.loader = clone_loader(loader, **{replaced: self.sampler})
        self._isolates = is_shared and loader.num_workers == 0 and _may_draw(loader)
        self._has_own_order = share.shards == 1 and not is_shared
        self._base, self._has_drawn = 0, False
        self._seed, self._first = 0, 0

    def memory(self) -> dict[str, Any]:
        """The base seed, which workers that live on after a pass are not given a second time."""
        return {"drawn": self._has_drawn, "base": self._base}

    def remember(self, memory: Mapping[str, Any]) -> None:
        """Take back what :meth:`memory` gave."""
        self._has_drawn, self._base = memory["drawn"], memory["base"]

    def begin(self, start: Start, seeds: PassSeeds | None) -> Iterator[Any]:
        """The batches of a pass, the first ones skipped by index."""
        own, sampler = self.own, self.sampler
        is_replayed = start.generators is not None  # else the order is drawn at the first batch, as ever
        resumes = is_replayed or start.offset > 0
        if seeds is None and self._has_own_order and not resumes and own.num_workers == 0 and sampler.kept is None:
            sampler.real = {}
            plain: Iterator[Any] = self.workers.iterate(own)
            return plain
        with start.replay():
            uses_seeds = seeds is not None and not (resumes and start.rng is not None)
            if not uses_seeds and self._has_own_order and own.num_workers == 0:
                self._seed, sampler.order_seed = 0, None  # the loader itself draws what it needs
                generator: Generator | None = own.generator
            else:
                self._base, sampler.order_seed = self._draw(start.epoch, seeds if uses_seeds else None)
                self._seed = mix(self._base, start.epoch)
                generator = Generator().manual_seed(mix(self._seed, sampler.seed_shard))
            object.__setattr__(self.loader, "generator", generator)
            sampler.worker_seed = self._seed if own.num_workers else None
            sampler.offset, sampler.primer, sampler.has_begun = start.offset, None, False
            sampler.primes = is_replayed and own.num_workers == 0
            self._first = start.offset // self.units
            batches: Iterator[Any] = self.workers.iterate(self.loader)
            primer: Any = sampler.primer
            if primer is not None:
                with start.replay_order():
                    next(primer)
            elif is_replayed and not sampler.has_begun:  # a class of the user's own, whose __iter__ begins with a batch
                sampler.primes = False
                batches = chain(list(islice(batches, 1)), batches)
        is_free = isinstance(batches, DataLoaderIterator) or (self.share.shards == 1 and not resumes)
        return batches if is_free else _begun_by(batches, own, lambda: sampler.has_begun)

    def _draw(self, epoch: int, seeds: PassSeeds | None) -> tuple[int, int | None]:
        """The base seed of a pass and the seed of its order, as plain torch draws them."""
        generator = self.own.generator
        base, order = (0, None) if seeds is None else seeds.of(epoch)
        if seeds is not None and (generator is None or self.sampler.reseed):
            return base, order
        if not (self.own.persistent_workers and self._has_drawn):
            self._base, self._has_drawn = draw_seed(generator), True
        return self._base, order

    def steps(self, offset: int) -> int:
        """How many batches are left."""
        return self.sampler.steps(offset)

    def real(self, number: int) -> Real | None:
        """The number of items of each process that are not padding."""
        return self.sampler.real.get(number)

    def facts(self) -> list[int]:
        """Of the first indices."""
        return facts_of_indices(self.sampler.head)

    def keep_indices(self) -> None:
        """Keep what the sampler gives."""
        self.sampler.kept = []

    def indices(self, number: int) -> list[Any] | None:
        """What the sampler gave for it."""
        kept = self.sampler.kept
        if kept is None:
            return None
        index = kept[number]
        return list(index) if isinstance(index, list | tuple) else [index]

    def batch_seed(self, number: int) -> int | None:
        """A separate seed for each batch, where processes would draw the same numbers."""
        return mix(self._seed, self.sampler.seed_shard, self._first + number) if self._isolates else None


class StreamReading(Reading):
    """Reads a ``DataLoader`` of an iterable data set.

    Args:
        loader: The user's own.
        share: Which part of its items.
        seed_shard: As in :class:`MapReading`.
        is_shared: Whether other processes read too.
        is_seeded: Whether the data set draws from generators that are seeded by the pass, on one process too.
    """

    def __init__(
        self, loader: DataLoader[Any], share: Share, seed_shard: int, is_shared: bool, is_seeded: bool
    ) -> None:
        super().__init__(loader)
        self.share, self._seed_shard = share, seed_shard
        size = loader.batch_size
        if share.split and share.shards > 1:
            check_split(size, False, share.shards)
        self.units = share.shards if size is None else share.global_size(size)
        self._is_plain = share.shards == 1 and not is_seeded
        self._has_drawn = False
        self._seed, self._first = 0, 0
        self._isolates = is_shared and not self._is_plain and loader.num_workers == 0 and _collate_may_draw(loader)
        if not self._is_plain or loader.num_workers == 0:
            self._stream = ShardedStream(self.own.dataset, size, loader.drop_last, share, is_shared)
            self.marks = not _iterates_by_itself(loader)
            replaced: dict[str, Any] = {"collate_fn": MarkedCollate(loader.collate_fn, self.marks), "drop_last": False}
            if size is not None:
                size = self.units // share.shards
                replaced["batch_sampler"] = BatchSampler(loader.sampler, size, False)
            self._clone = clone_loader(loader, dataset=self._stream, **replaced)
            self.marks = self.marks and not self._is_plain
            if not self._is_plain:
                self.loader = self._clone

    knows_length = False

    def facts(self) -> list[int]:
        """Of the first items."""
        return list(map(int, self._stream.facts))

    def begin(self, start: Start, seeds: PassSeeds | None) -> Iterator[Any]:
        """The batches of a pass; those before its start are read, and left out.

        Raises:
            CheckpointError: The pass began on another number of processes, and workers read it.
        """
        own = self.own
        if not start.is_same_world and start.offset:
            return self._resharded(start, seeds)
        with start.replay():
            if not self._is_plain:
                self._prepare(start, seeds, 0)
            elif start.inner is not None:
                own.load_state_dict(start.inner)
                continued: Iterator[Any] = self.workers.iterate(own)
                return continued
            batches: Iterator[Any] = self._iterate()
            self._begun.check(own.dataset, data_iterator(batches))
            if self.share.shards > 1 and not self.marks:
                batches = _begun_by(batches, own, lambda: bool(self._stream.has_begun))
            for number in range(start.batches):
                seed = self.batch_seed(number)
                with nullcontext() if seed is None else seeded(seed):
                    start.notes(next(batches, None), own)
        self._first = start.batches
        return batches

    def memory(self) -> dict[str, Any]:
        """Whether workers that live on after a pass were given their base seed."""
        return {"drawn": self._has_drawn, "base": 0}

    def remember(self, memory: Mapping[str, Any]) -> None:
        """Take back what :meth:`memory` gave."""
        self._has_drawn = memory["drawn"]

    def _iterate(self) -> Iterator[Any]:
        """The loader's batches; drawing a base seed no more often than in the run that is resumed."""
        drew, self._has_drawn = self._has_drawn, self.own.persistent_workers
        if not (drew and self._is_plain and kept_iterator(self.loader) is None):
            return self.workers.iterate(self.loader)
        with replayed(get_host_rng_state()):
            return self.workers.iterate(self.loader)

    def _prepare(self, start: Start, seeds: PassSeeds | None, offset: int) -> None:
        base = seeds.of(start.epoch)[0] if seeds is not None and self.own.generator is None else None
        self._seed = draw_seed(self.own.generator) if base is None else base
        self._stream.seed.fill_(self._seed)
        self._stream.has_begun.fill_(False)
        self._stream.offset, self._first = offset, 0
        object.__setattr__(self._clone, "generator", Generator().manual_seed(mix(self._seed, self._seed_shard)))

    def _resharded(self, start: Start, seeds: PassSeeds | None) -> Iterator[Any]:
        if self.own.num_workers:
            raise CheckpointError(
                f"position in an iterable data set: taken on another number of processes, with num_workers="
                f"{self.own.num_workers}. Use num_workers=0 to continue it here, or as many processes as before."
            )
        with start.replay():
            self._prepare(start, seeds, start.offset)
            batches: Iterator[Any] = self.workers.iterate(self._clone)
        return batches if self.loader is self._clone else (pair[0] for pair in batches)

    def steps(self, offset: int) -> int:
        """How many batches are left, where the workers divide the items of the data set evenly among them."""
        total = max(len(self.own.dataset) - offset, 0)
        own = self.own
        return stream_steps(total, own.batch_size, own.drop_last, self.share, own.num_workers)

    def inner_state(self) -> dict[str, Any] | None:
        """The state of a ``StatefulDataLoader`` that is read as it is."""
        state: Callable[[], dict[str, Any]] | None = getattr(self.own, "state_dict", None) if self._is_plain else None
        return None if state is None else state()

    def batch_seed(self, number: int) -> int | None:
        """A separate seed for what collates each batch, where processes would draw the same numbers."""
        return mix(self._seed, self._seed_shard, self._first + number) if self._isolates else None


def make_reading(
    loader: Any, share: Share, seed_shard: int = 0, is_shared: bool = False, is_seeded: bool = False
) -> Reading:
    """How ``loader`` is read; see the classes' arguments.

    Raises:
        ConfigurationError: Its batches are to be split, and cannot be.
        WrongTypeError: It is a data set.
    """
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise WrongTypeError(
            f"loader: got a data set of type {type(loader).__name__}, which yields no batches. Pass a loader: "
            "DataLoader(dataset, batch_size=...)."
        )
    if not isinstance(loader, DataLoader):
        return Reading(loader)
    if loader.persistent_workers and keeps_epoch_from_workers(loader.dataset):
        logger.warning(
            "data: %s has set_epoch, which workers that live on after a pass would not hear, so each pass starts its "
            "workers again, in spite of persistent_workers=True. For workers that stay, keep the epoch in shared "
            "memory: self.epoch = multiprocessing.Value('q', 0)",
            type(loader.dataset).__name__,
        )
        loader = clone_loader(loader, persistent_workers=False)
    if loader.num_workers and not getattr(loader, "in_order", True):
        logger.warning(
            "data: batches are handed out in order, in spite of in_order=False: which of them are done, and which "
            "items are padding, is known by their number"
        )
        loader = clone_loader(loader, in_order=True)
    if isinstance(loader.dataset, IterableDataset):
        return StreamReading(loader, share, seed_shard, is_shared, is_seeded)
    return MapReading(loader, share, seed_shard, is_shared)


def _begun_by(batches: Iterator[Any], loader: Any, has_begun: Callable[[], bool]) -> Iterator[Any]:
    """``batches``, if they are of an iterator over the data that the pass has begun.

    Raises:
        ConfigurationError: A class of the user's own takes them from elsewhere.
    """
    for batch in batches:
        if not has_begun():
            raise ConfigurationError(
                f"data: {type(loader).__name__} takes its batches from an iterator that it began before it was "
                "prepared, so they are not divided among the processes, and a resumed run does not find its place. "
                "Begin it in __iter__; for workers that live on after a pass, use a DataLoader with "
                "persistent_workers=True. If it already yields only this process's part, prepare it with sharded=True."
            )
        yield batch


def check_length(loader: Any, steps: Callable[[int], int], offset: int, found: int, is_again: bool) -> None:
    """Compare the number of batches in a pass over ``loader`` from ``offset`` on with what ``steps`` says of it.

    Another number is a warning.

    Args:
        loader: The user's own.
        steps: Says how many there are from an offset on.
        offset: Where the pass began.
        found: How many there were.
        is_again: Whether it began at the start of data that had batches in an earlier pass.

    Raises:
        ConfigurationError: There are none any more, and ``steps`` does not say so.
    """
    said: int | None = None
    with suppress(TypeError):  # no length
        said = steps(offset)
    if is_again and not found and said != 0:
        raise ConfigurationError(
            f"data: {type(loader).__name__} has no batch, and a pass before had some. It must yield batches each time "
            "it is iterated: a generator, and a data set or sampler whose __iter__ returns the same iterator, can be "
            "read once only."
        )
    if said is not None and said != found:
        logger.warning_once(
            "data: a pass over %s had %d batch(es), and its length is %d: accumulated gradients may be left over at "
            "the end of an epoch, or an epoch end within its batches. Let the __len__ of its data or sampler be "
            "exact, or raise TypeError: then the end is found by reading ahead",
            type(loader).__name__,
            found,
            said,
        )


def in_order(loader: Any) -> Any:
    """``loader`` without its sampler: a DataLoader of a map-style data set in the order of the data set.

    What torch does not shuffle is left as it is: another iterable, and a DataLoader with its own batch sampler.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        return loader
    source: Any = loader.dataset
    sampler = SequentialSampler(source)
    batches = None if loader.batch_sampler is None else BatchSampler(sampler, loader.batch_size or 1, loader.drop_last)
    return clone_loader(loader, sampler=sampler, batch_sampler=batches)


def clone_loader(loader: DataLoader[Any], **attributes: Any) -> DataLoader[Any]:
    """A copy of ``loader`` that keeps its class and every other setting."""
    clone = copy.copy(loader)
    clear_kept_iterator(clone)
    for name, value in attributes.items():
        # A DataLoader does not let its sampler or data set be changed; this copy has not been iterated yet.
        object.__setattr__(clone, name, value)
    return clone


def _may_draw(loader: DataLoader[Any]) -> bool:
    """Whether fetching a batch may draw random numbers."""
    dataset: Any = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) not in (TensorDataset, list, tuple, range) or _collate_may_draw(loader)


def _collate_may_draw(loader: DataLoader[Any]) -> bool:
    return loader.collate_fn not in (default_collate, default_convert)


def _iterates_by_itself(loader: DataLoader[Any]) -> bool:
    """Whether the loader's class has an ``__iter__`` of the user's own, which takes batches as they are collated."""
    (definer, *_) = (cls for cls in type(loader).__mro__ if "__iter__" in vars(cls))
    return definer.__module__.partition(".")[0] not in ("torch", "torchdata")
