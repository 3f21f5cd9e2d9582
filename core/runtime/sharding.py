"""Splitting what a data loader yields between processes.

For training, each process takes every n-th item (every n-th batch, where the loader brings its own batch sampler). Where
the number does not divide, items from the start are repeated until it does, as
:class:`torch.utils.data.DistributedSampler` does, so that every process makes the same number of steps.

For evaluation, each process takes every n-th batch (every n-th item of a stream), and nothing is repeated.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
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

__all__ = ["shard_loader"]


def shard_loader(
    loader: DataLoader[Any], shards: int, shard: int, evaluation: bool = False
) -> tuple[DataLoader[Any], Any]:
    """A loader like ``loader`` that yields one of ``shards`` parts of its data.

    Args:
        loader: The user's own; it is left as it was.
        shards: Into how many parts.
        shard: Which of them.
        evaluation: Split batches instead of items, and repeat none.

    Returns:
        The new loader, and what has a ``set_epoch(epoch)`` to be called before each pass, or ``None``.
    """
    if isinstance(loader.sampler, DistributedSampler):
        return loader, loader.sampler
    pad = not evaluation
    if isinstance(loader.dataset, IterableDataset):
        return _with(loader, dataset=_IterableShard(loader.dataset, shards, shard, pad)), None
    if loader.batch_sampler is not None and (evaluation or type(loader.batch_sampler) is not BatchSampler):
        batches = _SequenceShard(loader.batch_sampler, shards, shard, pad)
        return _with(loader, batch_sampler=batches), batches
    sampler = _SequenceShard(loader.sampler, shards, shard, pad) if evaluation else _shard_sampler(loader, shards, shard)
    if loader.batch_sampler is None:
        return _with(loader, sampler=sampler), sampler
    assert loader.batch_size is not None
    batch_sampler = BatchSampler(sampler, loader.batch_size, loader.drop_last)
    return _with(loader, sampler=sampler, batch_sampler=batch_sampler), sampler


def _shard_sampler(loader: DataLoader[Any], shards: int, shard: int) -> Any:
    sampler, dataset = loader.sampler, loader.dataset
    is_permutation = (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(dataset)  # type: ignore[arg-type]
    )
    if is_permutation or type(sampler) is SequentialSampler:
        return DistributedSampler(dataset, num_replicas=shards, rank=shard, shuffle=is_permutation)
    return _SequenceShard(sampler, shards, shard, pad=True)


def _with(loader: DataLoader[Any], **attributes: Any) -> DataLoader[Any]:
    """A copy of ``loader`` that keeps its class and every other setting."""
    clone = copy.copy(loader)
    for name, value in {"_iterator": None, **attributes}.items():
        # DataLoader refuses to have its sampler or data set changed; this copy has not been iterated yet.
        object.__setattr__(clone, name, value)
    return clone


class _SequenceShard(Sampler[Any]):
    """Every n-th element of a sampler or batch sampler whose order is the same in each process."""

    def __init__(self, sampler: Iterable[Any], shards: int, shard: int, pad: bool) -> None:
        self.sampler, self.shards, self.shard, self.pad, self.epoch = sampler, shards, shard, pad, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        # A sampler that draws from the global generator must draw the same in each process.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.epoch)
            elements = list(self.sampler)
        if self.pad:
            elements = _padded(elements, self.shards)
        return iter(elements[self.shard :: self.shards])

    def __len__(self) -> int:
        before_this = 0 if self.pad else self.shard
        return -(-(len(self.sampler) - before_this) // self.shards)  # type: ignore[arg-type]


class _IterableShard(IterableDataset[Any]):
    """Every n-th item of a stream that is the same in each process."""

    def __init__(self, dataset: IterableDataset[Any], shards: int, shard: int, pad: bool) -> None:
        self.dataset, self.shards, self.shard, self.pad = dataset, shards, shard, pad

    def __iter__(self) -> Iterator[Any]:
        stream = iter(self.dataset)
        first: list[Any] = []
        while group := list(islice(stream, self.shards)):
            first = first or group
            if self.pad:
                group = _padded(group, self.shards, first)
            if self.shard < len(group):
                yield group[self.shard]

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


def _padded(elements: list[Any], shards: int, source: list[Any] | None = None) -> list[Any]:
    """``elements``, with some of ``source`` repeated behind them until ``shards`` divides their number."""
    source = source or elements
    missing = -len(elements) % shards
    return elements + (source * (missing // len(source) + 1))[:missing] if missing else elements
