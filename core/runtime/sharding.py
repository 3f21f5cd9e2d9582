"""Splitting what a data loader yields between processes.

For training, each process takes every n-th item (every n-th batch, where the loader brings its own kind of batch
sampler). Where the number does not divide, items from the start are repeated until it does, as
:class:`torch.utils.data.DistributedSampler` does, so that every process makes the same number of steps.

For evaluation, each process takes every n-th batch (every n-th item of a stream), and nothing is repeated.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from core.errors import ConfigurationError
from core.random import get_host_rng_state, set_host_rng_state

__all__ = ["shard_loader"]


def shard_loader(
    loader: DataLoader[Any], shards: int, shard: int, evaluation: bool = False
) -> tuple[DataLoader[Any], Any]:
    """A loader like ``loader`` that yields one of ``shards`` parts of its data.

    One that draws through a :class:`torch.utils.data.DistributedSampler` of the user's own is shared out already.

    Args:
        loader: The user's own; it is left as it was.
        shards: Into how many parts.
        shard: Which of them.
        evaluation: Split batches instead of items, and repeat none.

    Returns:
        The new loader, and what has a ``set_epoch(epoch)`` to be called before each pass; ``loader`` itself and
        ``None`` where it is shared out already.

    Raises:
        ConfigurationError: The user's own ``DistributedSampler`` is for other processes than these.
    """
    batch_sampler: Any = loader.batch_sampler
    # The same as loader.sampler, unless the user gave the batch sampler.
    sampler = getattr(batch_sampler, "sampler", loader.sampler)
    if isinstance(sampler, DistributedSampler):
        _check_split(sampler, shards, shard)
        return loader, None
    pad = not evaluation
    if isinstance(loader.dataset, IterableDataset):
        return _with(loader, dataset=_IterableShard(loader.dataset, shards, shard, pad)), None
    if batch_sampler is not None and (evaluation or type(batch_sampler) is not BatchSampler):
        of_batches = _SequenceShard(batch_sampler, shards, shard, pad)
        return _with(loader, batch_sampler=of_batches), of_batches
    items: Any = _SequenceShard(sampler, shards, shard, pad)
    if not evaluation and _is_of_all_items(sampler, loader.dataset):
        shuffle = type(sampler) is RandomSampler
        items = DistributedSampler(loader.dataset, num_replicas=shards, rank=shard, shuffle=shuffle)
    if batch_sampler is None:
        return _with(loader, sampler=items), items
    batches = BatchSampler(items, batch_sampler.batch_size, batch_sampler.drop_last)
    return _with(loader, sampler=items, batch_sampler=batches), items


def _check_split(sampler: DistributedSampler[Any], shards: int, shard: int) -> None:
    if (sampler.num_replicas, sampler.rank) != (shards, shard):
        raise ConfigurationError(
            f"DistributedSampler(num_replicas={sampler.num_replicas}, rank={sampler.rank}): this is process {shard} of "
            f"{shards}. Valid: num_replicas={shards}, rank={shard}, or a loader without one, which is shared out here."
        )


def _is_of_all_items(sampler: Any, dataset: Any) -> bool:
    """Whether ``sampler`` is torch's own for every item once, in order or shuffled."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(dataset)
    return type(sampler) is SequentialSampler


def _with(loader: DataLoader[Any], **attributes: Any) -> DataLoader[Any]:
    """A copy of ``loader`` that keeps its class and every other setting."""
    clone = copy.copy(loader)
    for name, value in {"_iterator": None, **attributes}.items():
        # DataLoader refuses to have its sampler or data set changed; this copy has not been iterated yet.
        object.__setattr__(clone, name, value)
    return clone


class _SequenceShard(Sampler[Any]):
    """Every n-th element of a sampler or batch sampler.

    Its order is the same in each process: what it draws from the global generators is seeded by the epoch. Only of one
    without a length, which may never end, nothing is drawn ahead: there the order is its own matter.
    """

    def __init__(self, sampler: Iterable[Any], shards: int, shard: int, pad: bool) -> None:
        self.sampler, self.shards, self.shard, self.pad, self.epoch = sampler, shards, shard, pad, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        elements = self.sampler
        if hasattr(elements, "__len__"):
            with _seeded(self.epoch):
                elements = list(elements)
        return _every_nth(elements, self.shards, self.shard, self.pad)

    def __len__(self) -> int:
        before_this = 0 if self.pad else self.shard
        return -(-(len(self.sampler) - before_this) // self.shards)  # type: ignore[arg-type]


class _IterableShard(IterableDataset[Any]):
    """Every n-th item of a stream that is the same in each process."""

    def __init__(self, dataset: IterableDataset[Any], shards: int, shard: int, pad: bool) -> None:
        self.dataset, self.shards, self.shard, self.pad = dataset, shards, shard, pad

    def __iter__(self) -> Iterator[Any]:
        return _every_nth(self.dataset, self.shards, self.shard, self.pad)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


def _every_nth(elements: Iterable[Any], shards: int, shard: int, pad: bool) -> Iterator[Any]:
    """Every n-th of ``elements``; with ``pad``, the first ones again until ``shards`` divides their number."""
    stream = iter(elements)
    first: list[Any] = []
    while group := list(islice(stream, shards)):
        first = first or group
        if pad:
            group = (group + first * shards)[:shards]
        if shard < len(group):
            yield group[shard]


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The host's global generators start from ``seed`` within, and go on afterwards as if nothing had been."""
    state = get_host_rng_state()
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach the devices' generators too
    try:
        yield
    finally:
        set_host_rng_state(state)
