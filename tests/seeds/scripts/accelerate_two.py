"""Two processes: what the document on Accelerate's class says of several."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from core import Runtime, synchronize_rng_states
from core.data import DataSettings

OUT = Path(os.environ["OUT"])


class Stream(IterableDataset[Any]):
    """Ten numbers; notes who reads them."""

    def __init__(self) -> None:
        self.is_read = False

    def __iter__(self) -> Iterator[Any]:
        self.is_read = True
        yield from torch.arange(10.0)


def numbers(batches: Any) -> list[list[float]]:
    """The items of each batch."""
    return [(batch[0] if isinstance(batch, list | tuple) else batch).tolist() for batch in batches]


runtime = Runtime(cpu=True, devices=2, rng_types=["torch", "generator"])
data = TensorDataset(torch.arange(8.0))
loader = runtime.prepare(DataLoader(data, batch_size=2))
rank = runtime.process_index
said: dict[str, Any] = {"rank": rank, "num_processes": runtime.num_processes, "batches": numbers(loader)}

torch.manual_seed(rank)
said["drawn"] = [torch.rand(1).item() for _ in loader]

for name, dispatch in (("dispatched", None), ("read_by_each", False)):
    stream = Stream()
    said[name] = numbers(
        runtime.prepare_data_loader(DataLoader(stream, batch_size=2), settings=DataSettings(dispatch_batches=dispatch))
    )
    said[f"{name}_here"] = stream.is_read

generator = torch.Generator().manual_seed(rank)
torch.manual_seed(rank)
synchronize_rng_states(["torch", "generator"], generator)
said["in step"] = [torch.rand(1).item(), torch.rand(1, generator=generator).item()]

part = torch.full((1 + rank, 2), float(rank))
said["padded"] = runtime.pad_across_processes(part, pad_index=-1).tolist()
said["padded_first"] = runtime.pad_across_processes(part, pad_index=-1, pad_first=True).tolist()
said["gathered"] = runtime.gather({"a": torch.tensor([rank, rank])})["a"].tolist()
said["main"] = runtime.is_main_process, runtime.is_local_main_process

with runtime.main_process_first():
    said["first"] = time.monotonic()
    if rank == 0:
        time.sleep(0.2)
        said["first_left"] = time.monotonic()
with runtime.local_main_process_first():
    said["local_first"] = time.monotonic()

if rank == 0:
    time.sleep(0.3)
    said["reached"] = time.monotonic()
runtime.wait_for_everyone()
said["passed"] = time.monotonic()

model: Any = nn.Linear(1, 1, bias=False)
with torch.no_grad():
    model.weight.fill_(0.0)
optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0)
prepared, optimizer = runtime.prepare(model, optimizer)
runtime.backward(prepared(torch.tensor([[1.0 + rank]])).sum())
said["gradient"] = model.weight.grad.item()
said["is_own"] = runtime.unwrap_model(prepared) is model
optimizer.step()
said["weight"] = model.weight.item()

runtime.print(f"printed by {rank}")
runtime.save({"rank": torch.tensor(rank)}, OUT / "saved.pt")
runtime.wait_for_everyone()
(OUT / f"rank{rank}.json").write_text(json.dumps(said))
