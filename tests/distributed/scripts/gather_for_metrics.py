"""What ``gather_for_metrics`` gives for random loaders, against the data set in its order."""

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from core import Runtime
from core.data import DataSettings
from core.strategies import DDPStrategy


class Stream(IterableDataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size))


class Growing(BatchSampler):
    """Batches of 1, 2, 3, … items, in order."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        start, length = 0, 1
        while start < self.size:
            yield list(range(start, min(start + length, self.size)))
            start, length = start + length, length + 1

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Rows(Dataset[torch.Tensor]):
    """Takes the indices of a batch at once, as Hugging Face's data sets do."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, indices: list[int]) -> torch.Tensor:
        return torch.arange(self.size)[indices]

    def __len__(self) -> int:
        return self.size


class Pairs(DDPStrategy):
    """The first process reads half of the data, all others the other half, as if they shared one model."""

    @property
    def data_shards(self) -> int:
        return 2

    @property
    def data_shard(self) -> int:
        return min(self.global_rank, 1)


def check_pairs(runtime: Runtime) -> None:
    """Of processes that read the same, one counts."""
    for size in range(1, 12):
        loader: DataLoader[int] = runtime.prepare(DataLoader(range(size), batch_size=3))  # type: ignore[arg-type]
        found = [int(item) for batch in loader for item in runtime.gather_for_metrics(batch)]
        names = [name for batch in loader for name in runtime.gather_for_metrics([str(int(item)) for item in batch])]
        assert found == list(range(size)), (size, found)
        assert names == list(map(str, range(size))), (size, names)


def draw(runtime: Runtime, rng: random.Random) -> tuple[str, Any, int]:
    """A prepared loader, what it is, and how many items it has."""
    size, batch_size = rng.randint(1, 40), rng.randint(1, 9)
    kind = rng.choice(["map", "map", "stream", "batches", "at once", "at once, own", "dispatch", "split", "uneven"])
    own: Any = DataLoader(range(size), batch_size=batch_size)  # type: ignore[arg-type]
    settings = None
    if kind == "stream":
        own = DataLoader(Stream(size), batch_size=batch_size)
    elif kind == "batches":
        own = DataLoader(range(size), batch_sampler=Growing(size))  # type: ignore[arg-type]
    elif kind == "at once":
        sampler = BatchSampler(SequentialSampler(range(size)), batch_size, drop_last=False)
        own = DataLoader(Rows(size), sampler=sampler, batch_size=None)
        settings = DataSettings(dispatch_batches=True) if rng.random() < 0.3 else None
    elif kind == "at once, own":
        own = DataLoader(Rows(size), sampler=Growing(size), batch_size=None)
    elif kind == "dispatch":
        settings = DataSettings(dispatch_batches=True)
    elif kind == "split":
        own = DataLoader(range(size), batch_size=batch_size * runtime.num_processes)  # type: ignore[arg-type]
        settings = DataSettings(split_batches=True)
    elif kind == "uneven":
        settings = DataSettings(even_batches=False)
    evaluation = rng.random() < 0.5
    if not evaluation and settings is None:
        loader = runtime.prepare(own)
    else:
        loader = runtime.prepare_data_loader(own, evaluation=evaluation, settings=settings)
    return f"{kind}, {size} items, batches of {batch_size}, evaluation={evaluation}", loader, size


def collect(runtime: Runtime, loader: Any, name: str) -> list[int]:
    found = []
    for batch in loader:
        gathered = runtime.gather_for_metrics({"x": batch, "wide": [batch.unsqueeze(1) * torch.ones(2)], "no": None})
        items = gathered["x"].tolist()
        assert gathered["wide"][0][:, 1].tolist() == items, name
        assert runtime.gather_for_metrics([f"item {item}" for item in batch]) == [f"item {i}" for i in items], name
        ragged = runtime.gather_for_metrics([torch.ones(int(item)) for item in batch], use_gather_object=True)
        assert [len(one) for one in ragged] == items, name
        losses = runtime.gather_for_metrics(batch.sum())
        assert 1 <= len(losses) <= runtime.num_processes, name
        found += items
    return found


def check(runtime: Runtime, cases: int) -> None:
    rng = random.Random(runtime.num_processes)
    for case in range(cases):
        name, loader, size = draw(runtime, rng)
        if name.startswith("uneven"):
            steps = len(loader)
            if runtime.reduce(steps, "max") != runtime.reduce(steps, "min"):
                continue
        if rng.random() < 0.3:  # a loop that is left early
            for _ in loader:
                break
            whole = torch.zeros(3)
            assert len(runtime.gather_for_metrics(whole)) == 3 * runtime.num_processes, name
        if rng.random() < 0.3:  # evaluation within another loop
            outer_name, outer, outer_size = draw(runtime, rng)
            if not outer_name.startswith("uneven"):
                seen = []
                for batch in outer:
                    assert collect(runtime, loader, name) == list(range(size)), (case, name, "inner")
                    for _ in loader:
                        break
                    seen += runtime.gather_for_metrics(batch).tolist()
                assert seen == list(range(outer_size)), (case, outer_name, "outer")
        found = collect(runtime, loader, name)
        assert found == list(range(size)), (case, name, found)

    loader = runtime.prepare_data_loader(DataLoader(range(34), batch_size=8), evaluation=True)  # type: ignore[arg-type]
    assert collect(runtime, loader, "34 items") == list(range(34))
    runtime.print(f"all {cases} cases")


if __name__ == "__main__":
    if sys.argv[1] != "1":
        pairs = Pairs(start_method="fork")
        Runtime(accelerator="cpu", strategy=pairs, devices=int(sys.argv[1])).launch(check_pairs)
    Runtime(accelerator="cpu", strategy="auto" if sys.argv[1] == "1" else "ddp_fork", devices=int(sys.argv[1])).launch(
        check, cases=int(sys.argv[2])
    )
