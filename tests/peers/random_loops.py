"""Random training loops, written once for Accelerate's names; prints what each process saw and computed.

Run by torchrun as ``random_loops.py FRONT STEPS FOLDER``, where ``FRONT`` is ``core`` or ``accelerate``, and ``STEPS``
the micro-batches of a window. The data can be divided: where it cannot, the two differ on purpose.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

LOOPS = 12


class Stream(IterableDataset[Any]):
    def __init__(self, items: int) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter([tuple(column[item] for column in columns(self.items)) for item in range(self.items)])


def columns(items: int) -> tuple[torch.Tensor, ...]:
    features = torch.randn(items, 3, generator=torch.Generator().manual_seed(1))
    return torch.arange(items), features, features.sum(1, keepdim=True)


def loop(accelerator: Any, rng: random.Random, steps: int) -> list[Any]:
    """What one random loop sees and computes in this process."""
    size = rng.randint(1, 3)
    items = size * accelerator.num_processes * steps * rng.randint(1, 3)
    data: Any = Stream(items) if rng.random() < 0.3 else TensorDataset(*columns(items))
    order = None if isinstance(data, Stream) or rng.random() < 0.5 else rng.sample(range(items), items)
    torch.manual_seed(2)
    models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(rng.randint(1, 2))]
    kind = rng.choice([torch.optim.SGD, torch.optim.AdamW])
    optimizers = [kind(model.parameters(), lr=0.05) for model in models]
    loader: Any = DataLoader(data, batch_size=size, sampler=order)
    *prepared, loader = accelerator.prepare(*models, *optimizers, loader)
    models, optimizers = prepared[: len(models)], prepared[len(models) :]
    schedules = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in optimizers]  # not prepared
    clips, rows = rng.choice(["", "norm", "value"]), []
    for _ in range(2):
        for numbers, features, targets in loader:
            with accelerator.accumulate(*models):
                loss: Any = sum(nn.functional.mse_loss(model(features), targets) for model in models)
                accelerator.backward(loss)
                norms = []
                if accelerator.sync_gradients and clips:
                    for model in models:
                        clip = getattr(accelerator, f"clip_grad_{clips}_")
                        norms.append(clip(model.parameters(), 0.5))
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
                for schedule in schedules if accelerator.sync_gradients else ():
                    schedule.step()
            mean = accelerator.reduce(loss.detach(), reduction="mean")
            padded = accelerator.pad_across_processes(features[: 1 + accelerator.process_index], dim=0, pad_index=-1)
            rows += [
                [numbers.tolist(), loss.item(), mean.item()],
                [accelerator.sync_gradients, optimizers[0].param_groups[0]["lr"]],
                [None if norm is None else float(norm) for norm in norms],
                [accelerator.gather_for_metrics(numbers).tolist(), accelerator.gather(padded).tolist()],
                [accelerator.gather_for_metrics([f"item {number}" for number in numbers.tolist()])],
            ]
    rows.append([parameter.tolist() for model in models for parameter in accelerator.unwrap_model(model).parameters()])
    accelerator.free_memory()
    return rows


def main(front: str, steps: int, folder: Path) -> None:
    """Run the loops."""
    torch.set_num_threads(1)
    library: Any = importlib.import_module(front)
    is_core = front == "core"
    make = functools.partial(library.Runtime, devices=int(os.environ["WORLD_SIZE"])) if is_core else library.Accelerator
    accelerator = make(cpu=True, gradient_accumulation_steps=steps)
    found = [loop(accelerator, random.Random(number), steps) for number in range(LOOPS)]
    (folder / f"{front}-{accelerator.process_index}.json").write_text(json.dumps(found))
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
