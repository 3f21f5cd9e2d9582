"""What three processes see of 34 items, each journal in its own file."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from core import Runtime
from core.data import DataSettings, drop_padding
from core.errors import CoreError


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(34))

    def __len__(self) -> int:
        return 34


class Divided(Stream):
    """Each worker reads its part."""

    def __init__(self) -> None:
        self.is_read = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> Any:
        self.is_read += 1
        info = get_worker_info()
        return iter(range(34) if info is None else range(info.id, 34, info.num_workers))


class Words(IterableDataset[str]):
    def __iter__(self) -> Any:
        return iter("abcdefg")


class Damaged(Dataset[int]):
    def __len__(self) -> int:
        return 34

    def __getitem__(self, index: int) -> int:
        if index == 30:
            raise ValueError("item 30 is damaged")
        return index


def shuffled(**options: Any) -> DataLoader[int]:
    return DataLoader(range(34), 8, shuffle=True, **options)  # type: ignore[arg-type]


def main() -> None:
    runtime = Runtime(accelerator="cpu", strategy="ddp", devices=3)
    runtime.launch()
    rank = runtime.process_index

    def gathered(loader: Any) -> list[int]:
        return [item for batch in loader for item in drop_padding(runtime.gather(batch), loader.real_samples).tolist()]

    said: dict[str, Any] = {}
    for seed in (1, 2):
        torch.manual_seed(seed + 100 * rank)  # what counts is rank 0's
        loader = runtime.prepare(shuffled())
        said[f"seed {seed}"] = [gathered(loader) for _ in range(2)]
    loader = runtime.prepare(shuffled(generator=torch.Generator().manual_seed(7 + rank)))
    said["generator"] = [gathered(loader) for _ in range(2)]
    held_out = runtime.prepare_data_loader(DataLoader(range(34), 8), evaluation=True)  # type: ignore[arg-type]
    said["evaluation"] = gathered(held_out)
    for name, data in {"map": range(34), "stream": Stream()}.items():
        loader = runtime.prepare_data_loader(
            DataLoader(data, 8),  # type: ignore[arg-type]
            settings=DataSettings(dispatch_batches=True),
        )
        said[f"dispatched {name}"] = [gathered(loader), len(loader)]
    loader = runtime.prepare_data_loader(DataLoader(Damaged(), 5), settings=DataSettings(dispatch_batches=True))
    try:
        gathered(loader)
    except (ValueError, CoreError) as error:
        said["damaged"] = [type(error).__name__, str(error)]
    stream = runtime.prepare(DataLoader(Stream(), 8, num_workers=1))
    said["stream"] = [gathered(stream), len(stream)]
    divided = Divided()
    loader = runtime.prepare(DataLoader(divided, 8, num_workers=2))
    said["workers"] = sorted(gathered(loader))
    said["read by"] = int(divided.is_read)
    said["uneven"] = []
    for batch in runtime.prepare_data_loader(DataLoader(Divided(), 8), settings=DataSettings(even_batches=False)):
        said["uneven"] += batch.tolist()
    words = runtime.prepare(DataLoader(Words(), 2))
    said["words"] = [word for batch in words for word in runtime.gather_for_metrics(batch, use_gather_object=True)]
    Path(os.environ["OUT"], f"rank{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
