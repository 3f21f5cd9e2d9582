"""Accelerate's class on some cards, on data that does not divide: its own samplers complete the last batches."""

from __future__ import annotations

import sys
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils import DataLoaderConfiguration
from problem import EPOCHS, distance, network, say, sgd, weights
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
from torch_hal_accelerate import Accelerator, deactivate

CARDS, BATCH = int(sys.argv[1]), 8


def data(items: int) -> TensorDataset:
    """The samples, with their numbers."""
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(items, 8, generator=generator), torch.randint(0, 3, (items,), generator=generator)
    return TensorDataset(inputs, targets, torch.arange(items))


def size(split: bool) -> int:
    """Of the loader's batches: of each process, or of all together."""
    return BATCH * CARDS if split else BATCH


def by_hand(items: int, precision: str, split: bool) -> list[Tensor]:
    """The weights after training on the CPU, in one process that has the batches of all."""
    net = network()
    optimizer = sgd(net)
    low = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    samplers = [
        BatchSamplerShard(BatchSampler(SequentialSampler(data(items)), size(split), False), CARDS, rank, split)
        for rank in range(CARDS)
    ]
    for _ in range(EPOCHS):
        for batches in zip(*(DataLoader(data(items), batch_sampler=sampler) for sampler in samplers), strict=True):
            optimizer.zero_grad()
            inputs, targets, _ = (torch.cat(parts) for parts in zip(*batches, strict=True))
            with low:
                loss = nn.functional.cross_entropy(net(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    trained: list[Tensor] = weights(net)
    return trained


if __name__ == "__main__":
    said: dict[str, Any] = {}
    for precision, split in (("no", False), ("bf16", False), ("no", True)):
        config = DataLoaderConfiguration(split_batches=split)
        accelerator = Accelerator(
            accelerator="acme", devices=CARDS, mixed_precision=precision, dataloader_config=config
        )
        for items in (62, 67):
            net = network()
            model, optimizer, batches = accelerator.prepare(net, sgd(net), DataLoader(data(items), size(split)))
            for _ in range(EPOCHS):
                for inputs, targets, _ in batches:
                    optimizer.zero_grad()
                    accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
                    optimizer.step()
            numbers = [accelerator.gather_for_metrics(number) for _, _, number in batches]
            said[f"{precision}{' split' * split} {items}"] = {
                "distance": distance(weights(net), by_hand(items, precision, split)),
                "device": str(accelerator.device),
                "world": accelerator.num_processes,
                "numbers": torch.cat(numbers).tolist() == [*range(items)],
            }
        rank = accelerator.process_index
        accelerator.wait_for_everyone()
        deactivate()
    say(rank, said)
