"""Data loaders of every kind, and what plays a process of several."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Generator
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from core.data import DataSettings, PreparedLoader, prepare_loader


class Numbers(Dataset[int]):
    """0, 1, 2, …"""

    def __init__(self, items: int) -> None:
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    """0, 1, 2, …, split among the workers that read it."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.note = "kept"

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(self.items) if info is None else range(info.id, self.items, info.num_workers))


class SizedStream(Stream):
    """A stream that knows its length."""

    def __len__(self) -> int:
        return self.items


class Reversed(Sampler[int]):
    """A sampler of the user's own."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.items - 1, -1, -1))

    def __len__(self) -> int:
        return self.items


class Pairs(Sampler[list[int]]):
    """A batch sampler of the user's own."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __iter__(self) -> Iterator[list[int]]:
        return (list(range(first, min(first + 2, self.items))) for first in range(0, self.items, 2))

    def __len__(self) -> int:
        return math.ceil(self.items / 2)


KINDS: dict[str, Callable[[int], DataLoader[Any]]] = {
    "sequential": lambda n: DataLoader(Numbers(n), batch_size=4),
    "shuffled": lambda n: DataLoader(Numbers(n), batch_size=4, shuffle=True),
    "shuffled by a generator": lambda n: DataLoader(Numbers(n), 4, shuffle=True, generator=Generator().manual_seed(1)),
    "custom sampler": lambda n: DataLoader(Numbers(n), batch_size=4, sampler=Reversed(n)),
    "custom batch sampler": lambda n: DataLoader(Numbers(n), batch_sampler=Pairs(n)),
    "batch sampler": lambda n: DataLoader(Numbers(n), batch_sampler=BatchSampler(Reversed(n), 4, drop_last=False)),
    "no batches": lambda n: DataLoader(Numbers(n), batch_size=None),
    "no batches, shuffled": lambda n: DataLoader(Numbers(n), batch_size=None, shuffle=True),
    "stream": lambda n: DataLoader(Stream(n), batch_size=4),
    "stream without batches": lambda n: DataLoader(Stream(n), batch_size=None),
}


class OwnLoader(DataLoader[Any]):
    """A DataLoader of the user's own."""

    def __init__(self, *args: Any, label: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.label = label

    def __iter__(self) -> Any:
        return (batch + 100 for batch in super().__iter__())


def flat(batches: list[Any]) -> list[int]:
    """The items in ``batches``."""
    return [int(item) for batch in batches for item in torch.as_tensor(batch).reshape(-1)]


class Process(SimpleNamespace):
    """One of several processes, played in one: what process 0 broadcasts is what those after it receive.

    Those of one group are to prepare the same loaders, process 0 first.
    """

    number: int
    sent: ClassVar[dict[Any, list[Any]]] = {}

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        sent = self.sent.setdefault(self.group, [])
        if self.global_rank == src:
            sent.append(obj)
        number, self.number = self.number, self.number + 1
        return copy.deepcopy(sent[number])


def strategy(shards: int, shard: int, device: str = "cpu", group: Any = None) -> Any:
    """One of so many processes, on that device; alone in its group, it is told what it has itself."""
    group = object() if group is None else group
    rank = shard if group in Process.sent or shard == 0 else 0
    where = torch.device(device)
    counts = {"data_shards": shards, "world_size": shards, "data_shard": shard, "global_rank": rank}
    return Process(**counts, root_device=where, group=group, number=0)


def prepared(
    make: Callable[[], Any],
    shards: int,
    *,
    seed: int | None = None,
    evaluation: bool = False,
    settings: DataSettings | None = None,
    sharded: bool = False,
) -> list[PreparedLoader]:
    """The prepared loader of each of ``shards`` processes, of which only process 0 draws from ``seed``."""
    group, found = object(), []
    for shard in range(shards):
        if seed is not None:
            torch.manual_seed(seed + 1000 * shard)
            random.seed(seed + shard)
        process = strategy(shards, shard, group=group)
        process.global_rank = shard
        found.append(prepare_loader(make(), process, evaluation=evaluation, settings=settings, sharded=sharded))
    return found


def gathered(
    loaders: list[PreparedLoader], note: Callable[[list[Any]], None] = lambda batches: None
) -> list[list[int]]:
    """One pass of all processes side by side; what a gather of each step's batches gives, without its padding."""
    found: list[list[int]] = []
    passes = [iter(loader) for loader in loaders]
    while True:
        batches = [next(batches, None) for batches in passes]
        if all(batch is None for batch in batches):
            return found
        assert all(batch is not None for batch in batches), "a process has fewer batches than another"
        note(batches)
        assert len({loader.real_samples for loader in loaders}) == 1
        real = loaders[0].real_samples or (None,) * len(loaders)
        items = [flat([batch])[:count] for batch, count in zip(batches, real, strict=True)]
        found.append([item for part in items for item in part])
