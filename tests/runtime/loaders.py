"""Data loaders of every kind, and what plays a process of several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Generator
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, get_worker_info


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


def strategy(shards: int, shard: int, device: str = "cpu") -> Any:
    """One of so many processes, on that device."""
    return SimpleNamespace(data_shards=shards, data_shard=shard, root_device=torch.device(device))
