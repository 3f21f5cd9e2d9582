"""Read several kinds of loaders in processes that share each batch but have different seeds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from problem import make, say
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset
from torch_hal_parallel import ModelParallelStrategy

from torch_hal import Runtime
from torch_hal.errors import CoreError

runtime = Runtime(accelerator="cpu", devices=2, strategy=ModelParallelStrategy(tensor=2))
RANK = runtime.process_index


class Noisy(Dataset[Any]):
    """Each item has a random number."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), torch.rand(()).item()])


class NoisyStream(IterableDataset[Any]):
    """The same, one after another; workers take turns."""

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(start, 10, step):
            yield torch.tensor([float(index), torch.rand(()).item()])


class Divided(IterableDataset[Any]):
    """It takes the part of a rank by itself."""

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(torch.distributed.get_rank(), 20, 2))


class DividedSampler(Sampler[int]):
    """Likewise."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(RANK, 10, 2))

    def __len__(self) -> int:
        return 5


ALIKE: dict[str, Any] = {
    "shuffled": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True),
    "shuffled by workers": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=2),
    "stream": lambda: DataLoader(NoisyStream(), batch_size=3),
    "stream of workers": lambda: DataLoader(NoisyStream(), batch_size=3, num_workers=2),
}
OTHER: dict[str, Any] = {
    "divided stream": lambda: DataLoader(Divided(), batch_size=3),
    "divided sampler": lambda: DataLoader(Noisy(), batch_size=3, sampler=DividedSampler()),
    "shorter data": lambda: DataLoader(TensorDataset(torch.ones(10 - RANK)), batch_size=3),
}
said: dict[str, Any] = {}
torch.manual_seed(RANK)
runtime.prepare(*make())
torch.manual_seed(RANK)
for name, loader in ALIKE.items():
    prepared = runtime.prepare(loader())
    read = [batch.tolist() for _ in range(2) for batch in prepared]
    said[name] = runtime.strategy.all_gather_object(read)
for name, loader in OTHER.items():
    error = ""
    try:
        list(runtime.prepare(loader()))
    except CoreError as caught:
        error = str(caught)
    said[name] = runtime.strategy.all_gather_object(error)
say(runtime, said)
