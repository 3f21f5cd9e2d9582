"""Random cases of a run that is saved after some step and continued in a new process.

``resuming.py save FIRST COUNT WORLD`` trains each case to its end, saves on the way, and writes what came out;
``resuming.py resume ...`` continues each case from its checkpoint, and compares; it prints the cases that differ.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from core import Runtime, set_seed

OUT = Path(os.environ["OUT"])
EPOCHS = 2


class Noisy(Dataset[Tensor]):
    """Each item is its number, and numbers that are drawn when it is read."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, float(torch.rand(())), float(np.random.rand()), random.random()])


class Stream(IterableDataset[Tensor]):
    """The same as a stream, which its workers divide."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Tensor]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.items, step):
            yield torch.tensor([float(index), 0.5, 0.25, 0.125])


class Averaging(nn.Module):
    """A layer with a buffer that changes in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, inputs: Tensor) -> Tensor:
        mean = self.get_buffer("mean")
        mean.mul_(0.9).add_(inputs.detach().float().mean(0), alpha=0.1)
        return inputs - mean


def make_loader(kind: str, workers: int, items: int) -> DataLoader[Any]:
    options: dict[str, Any] = {"num_workers": workers}
    if kind == "shuffled":
        return DataLoader(Noisy(items), 4, shuffle=True, **options)
    if kind == "own generator":
        return DataLoader(Noisy(items), 4, shuffle=True, generator=torch.Generator().manual_seed(5), **options)
    if kind == "weighted":
        sampler = WeightedRandomSampler(torch.arange(1.0, items + 1).tolist(), items)
        return DataLoader(Noisy(items), 4, sampler=sampler, drop_last=True, **options)
    if kind == "batch sampler":
        return DataLoader(Noisy(items), batch_sampler=BatchSampler(RandomSampler(range(items)), 3, False), **options)
    if kind == "persistent" and workers:
        return DataLoader(Noisy(items), 4, shuffle=True, persistent_workers=True, **options)
    return DataLoader(Stream(items) if kind == "stream" else Noisy(items), 4, **options)


KINDS = ("shuffled", "own generator", "weighted", "batch sampler", "stream", "persistent", "in order")


class Case:
    """What one case does; the same for the same number."""

    def __init__(self, number: int, world: int) -> None:
        rng = random.Random(number)
        self.number, self.world = number, world
        self.kind = rng.choice(KINDS)
        self.workers = rng.choice([0, 0, 0, 2]) if number % 5 else 2
        self.accumulate = rng.choice([1, 2, 3])
        self.precision = rng.choice(["32-true", "32-true", "bf16-mixed", "16-mixed"])
        self.optimizers = rng.choice([1, 2])
        self.clears_first = rng.random() < 0.5
        self.items = world * rng.randrange(13, 27) + rng.randrange(3)
        self.stop = rng.randrange(1, 2 * (self.items // (4 * world)))
        self.dispatches = world > 1 and rng.random() < 0.4

    def __str__(self) -> str:
        return json.dumps(vars(self))


class Run:
    """The objects of a case, as a script has them."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        self.runtime = Runtime(
            accelerator="cpu",
            devices=case.world,
            precision=case.precision,
            gradient_accumulation_steps=case.accumulate,
            dispatch_batches=case.dispatches,
        )
        self.runtime.launch()
        set_seed(seed, device_specific=True)
        own = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), Averaging(), nn.Linear(6, 3))
        other = nn.Linear(3, 1)
        optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(own.parameters(), lr=0.01)]
        if case.optimizers == 2:
            optimizers.append(torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9))
        else:
            optimizers[0].add_param_group({"params": list(other.parameters())})
        schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7) for optimizer in optimizers]
        loader = make_loader(case.kind, case.workers, case.items)
        prepared = self.runtime.prepare(own, other, *optimizers, *schedules, loader)
        self.model, self.other, self.loader = prepared[0], prepared[1], prepared[-1]
        self.optimizers, self.schedules = prepared[2 : 2 + len(optimizers)], prepared[2 + len(optimizers) : -1]
        self.seen: list[Any] = []
        self.batches = 0
        self.runtime.register_for_checkpointing(self)

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches = state["batches"]

    def train(self, save_at: int | None = None) -> None:
        runtime = self.runtime
        while self.loader.state_dict()["epoch"] < EPOCHS:
            for batch in self.loader:
                self.step(batch)
                if self.batches == save_at:
                    runtime.save_state(OUT / f"case{self.case.number}")

    def step(self, batch: Tensor) -> None:
        runtime, optimizers = self.runtime, self.optimizers
        self.batches += 1
        inputs = batch.float()
        noise = random.random() + float(np.random.rand())
        with runtime.accumulate(self.model, self.other):
            if self.case.clears_first:
                self.zero_grad()
            outputs = self.model(inputs / 10 + noise)
            loss = (self.other(outputs) - torch.rand(())).square().mean()
            runtime.backward(loss)
            runtime.clip_grad_norm_([*self.model.parameters(), *self.other.parameters()], 1.0)
            for part in (*optimizers, *self.schedules):
                part.step()
            if not self.case.clears_first:
                self.zero_grad()
        self.seen.append([batch.tolist(), float(loss.detach())])

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def end(self) -> dict[str, Any]:
        parameters = [p.detach().double().flatten().tolist() for m in (self.model, self.other) for p in m.parameters()]
        iterator = getattr(self.loader._reading.loader, "_iterator", None)
        if iterator is not None and self.case.workers:
            iterator._shutdown_workers()
        rates = [schedule.get_last_lr() for schedule in self.schedules]
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        result = {"parameters": parameters, "seen": self.seen, "rates": rates, "drawn": drawn}
        self.runtime.teardown()
        return result


def main(phase: str, first: int, count: int, world: int) -> None:
    torch.set_num_threads(1)
    for number in range(first, first + count):
        case = Case(number, world)
        run = Run(case, seed=number if phase == "save" else 10_000 + number)
        rank = run.runtime.process_index
        file = OUT / f"case{number}-{rank}.json"
        if phase == "save":
            run.train(save_at=case.stop)
            file.write_text(json.dumps(run.end()))
            continue
        run.runtime.load_state(OUT / f"case{number}")
        run.train()
        expected, found = json.loads(file.read_text()), json.loads(json.dumps(run.end()))
        expected["seen"] = expected["seen"][case.stop :]
        differ = [name for name in expected if expected[name] != found[name]]
        if differ:
            print(f"DIFFERS in {differ}: rank {rank} of {case}", flush=True)
        file.unlink()
    print(f"{phase}: {count} cases", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
