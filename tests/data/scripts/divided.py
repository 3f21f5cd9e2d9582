"""Loaders whose data is already divided among three processes, and others whose data is not: what each process says."""

import json
import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, Sampler, Subset, TensorDataset, get_worker_info, random_split

from core import Runtime
from core.errors import ConfigurationError

ITEMS = 48


class Stream(IterableDataset[Any]):
    """0, 1, 2, …, each item once whatever the workers."""

    def numbers(self) -> range:
        info = get_worker_info()
        return range(ITEMS) if info is None else range(info.id, ITEMS, info.num_workers)

    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor([float(item)]) for item in self.numbers())


class AsksTorch(Stream):
    def __init__(self) -> None:
        self.part, self.parts = dist.get_rank(), dist.get_world_size()

    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor([float(item)]) for item in self.numbers() if item % self.parts == self.part)


class AsksTheEnvironment(Stream):
    def __iter__(self) -> Iterator[Any]:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return ({"x": torch.tensor([float(item)]), "label": 0} for item in self.numbers()[rank::world_size])


class IsTold(Stream):
    def __init__(self, first: int) -> None:
        self.first = first

    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor([float(item)]) for item in self.numbers() if item % 3 == self.first)


class Calls(Stream):
    """Reads by a function that asks, and is no part of the class."""

    def __init__(self, function: Any) -> None:
        self.held = [function]

    def __iter__(self) -> Iterator[Any]:
        return (torch.tensor([float(item)]) for item in self.numbers() if self.held[0](item))


def is_here(item: int) -> bool:
    return item % 3 == int(os.environ["RANK"])


class InRankZeroOnly(Stream):
    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if dist.get_rank() == 0 else iter(())


class Augmented(Stream):
    def __iter__(self) -> Iterator[Any]:
        return (torch.rand(1) + random.random() + item for item in self.numbers())


class AugmentedByRank(Stream):
    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
        return ((item + torch.rand(1, generator=generator), item) for item in self.numbers())


class Shuffled(Stream):
    def __iter__(self) -> Iterator[Any]:
        numbers = list(self.numbers())
        random.shuffle(numbers)
        return (torch.tensor([float(item)]) for item in numbers)


class Every(Sampler[int]):
    """The indices of one part."""

    def __init__(self, part: int, parts: int) -> None:
        self.part, self.parts = part, parts

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.part, ITEMS, self.parts))

    def __len__(self) -> int:
        return len(range(self.part, ITEMS, self.parts))


class LikeTorchs(Every):
    """A sampler that says which part it yields, as torch's own does."""

    def __init__(self, part: int, parts: int) -> None:
        super().__init__(part, parts)
        self.rank, self.num_replicas = part, parts


class Rows(list[float]):
    """As Hugging Face's map-style data sets."""

    _fingerprint = "made"

    def with_format(self, kind: None) -> list[float]:
        return list(self)


ALL: Any = [float(item) for item in range(ITEMS)]
LOADERS: dict[str, Callable[[int, int], DataLoader[Any]]] = {
    "asks torch": lambda rank, workers: DataLoader(AsksTorch(), 4, num_workers=workers),
    "asks the environment": lambda rank, workers: DataLoader(AsksTheEnvironment(), 4, num_workers=workers),
    "is told": lambda rank, workers: DataLoader(IsTold(rank), 4, num_workers=workers),
    "by a function": lambda rank, workers: DataLoader(Calls(is_here), 4, num_workers=workers),
    "in rank 0 only": lambda rank, workers: DataLoader(InRankZeroOnly(), 4, num_workers=workers),
    "sampler": lambda rank, workers: DataLoader(ALL, 4, sampler=Every(rank, 3), num_workers=workers),
    "subset": lambda rank, workers: DataLoader(Subset(ALL, range(rank, ITEMS, 3)), 4, num_workers=workers),
    "random split": lambda rank, workers: DataLoader(random_split(ALL, [40, 8])[0], 4, num_workers=workers),
    "tensors": lambda rank, workers: DataLoader(TensorDataset(torch.arange(rank, ITEMS, 3.0)), 4, num_workers=workers),
    "rows": lambda rank, workers: DataLoader(Rows(ALL[16 * rank : 16 * rank + 16]), 4, num_workers=workers),  # type: ignore[arg-type]
    "uneven": lambda rank, workers: DataLoader(ALL[rank:], 4, num_workers=workers),
    "augmented by rank": lambda rank, workers: DataLoader(AugmentedByRank(), 4, num_workers=workers),
    "sampler like torch's": lambda rank, workers: DataLoader(ALL, 4, sampler=LikeTorchs(rank, 3), num_workers=workers),
    "stream": lambda rank, workers: DataLoader(Stream(), 4, num_workers=workers),
    "augmented": lambda rank, workers: DataLoader(Augmented(), 4, num_workers=workers),
    "shuffled stream": lambda rank, workers: DataLoader(Shuffled(), 4, num_workers=workers),
    "shuffled": lambda rank, workers: DataLoader(ALL, 4, shuffle=True, num_workers=workers),
    "no batches": lambda rank, workers: DataLoader(Stream(), None, num_workers=workers),
}


def values(batch: Any) -> list[float]:
    """What ``batch`` consists of."""
    part: Any = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else batch
    return [float(value) for value in torch.as_tensor(part).flatten()]


class Heard(logging.Handler):
    """Keeps messages."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def main() -> None:
    runtime = Runtime(accelerator="cpu", strategy="ddp", devices=3)
    runtime.launch()
    rank = runtime.process_index
    torch.manual_seed(rank)
    random.seed(rank)
    heard = Heard()
    logging.getLogger("torch_hal.data.rank_comparison").addHandler(heard)
    said: dict[str, Any] = {}

    def look(name: str, loader: Any, **options: Any) -> None:
        heard.messages.clear()
        error, found = "", []
        try:
            prepared = runtime.prepare_data_loader(loader, **options)
            found = [value for batch in prepared for value in values(batch)]
            for _ in prepared:
                pass  # a second pass compares nothing
        except ConfigurationError as caught:
            error = str(caught)
        said[name] = {"error": error, "warnings": heard.messages[:], "found": found}
        runtime.barrier()  # all have read it, whatever they found

    for workers in (0, 2):
        for name, make in LOADERS.items():
            look(f"{name}, {workers} workers", make(rank, workers))
        look(f"sharded, {workers} workers", LOADERS["asks torch"](rank, workers), sharded=True)
    Path(os.environ["OUT"], f"rank{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
