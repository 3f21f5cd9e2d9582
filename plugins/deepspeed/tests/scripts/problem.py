"""A model, its batches, and one training loop for every strategy."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import StepLR

import torch_hal

OUT = Path(os.environ["OUT"])
WIDTH, CLASSES = 256, 10
WHOLE = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
"""No parameter is small enough to be kept whole."""
STEPPED = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")
"""Of the engine's optimizer: what the user's own steps, in stages 1 and 2, and in stage 3."""


class Block(nn.Module):
    """One layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.inner(self.norm(x)).relu()
        return y


class MLP(nn.Module):
    """For vectors of 64 numbers, as a picture of a digit has."""

    offset: Tensor

    def __init__(self, width: int = WIDTH, blocks: int = 2) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, CLASSES)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.register_buffer("offset", torch.zeros(64))

    def forward(self, batch: Tensor) -> Tensor:
        scores: Tensor = self.last(self.blocks(self.first(batch - self.offset)))
        return scores


def batch_of(number: int, items: int = 8) -> tuple[Tensor, Tensor]:
    """Items for all processes, the same wherever it is asked."""
    generator = torch.Generator().manual_seed(number)
    targets = torch.randint(CLASSES, (items,), generator=generator)
    return torch.randn(items, 64, generator=generator) + targets[:, None] / 5, targets


def own_batch(runtime: torch_hal.Runtime, number: int) -> tuple[Tensor, Tensor]:
    """This process's share of it."""
    inputs, targets = (part.tensor_split(runtime.num_processes)[runtime.process_index] for part in batch_of(number))
    return inputs, targets


Made = tuple[nn.Module, nn.Module, torch.optim.Optimizer, StepLR]


def make(runtime: torch_hal.Runtime, divided: bool = False, **sizes: int) -> Made:
    """The user's model, the prepared one, its optimizer and a schedule of it."""
    runtime.launch()
    strategy: Any = runtime.strategy
    torch.manual_seed(0)
    with strategy.init_module() if divided else nullcontext():
        own = MLP(**sizes)
    optimizer: Any = torch.optim.AdamW(own.parameters(), lr=2e-3, eps=1e-4)
    schedule = StepLR(optimizer, 2, 0.5)
    prepared, optimizer = runtime.prepare(own, optimizer)
    return own, prepared, optimizer, schedule


def train(
    runtime: torch_hal.Runtime,
    made: Made,
    steps: int = 6,
    first: int = 0,
    accumulate: int = 1,
    clip: float | None = None,
) -> list[float]:
    """Some steps; returns the losses over all processes."""
    _, model, optimizer, schedule = made
    losses = []
    model.train()
    for step in range(first, first + steps):
        total = torch.zeros(())
        for part in range(accumulate):
            with nullcontext() if part == accumulate - 1 else runtime.no_sync(model):
                inputs, targets = own_batch(runtime, step * accumulate + part)
                loss = cross_entropy(model(inputs), targets) / accumulate
                runtime.backward(loss)
                total += loss.detach()
        if clip is not None:
            runtime.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(runtime.reduce(total, "mean")))
    return losses


def evaluate(runtime: torch_hal.Runtime, model: nn.Module) -> float:
    """The loss on new data."""
    model.eval()
    with torch.inference_mode():
        inputs, targets = batch_of(1000, 64)
        loss = cross_entropy(model(inputs), targets)
    model.train()
    return float(runtime.reduce(loss, "mean"))


def bytes_held(runtime: torch_hal.Runtime, made: Made) -> dict[str, int]:
    """What this process holds between a backward pass and a step: parameters, gradients, and the optimizer's state.

    ``copies`` are those of the parameters that the optimizer steps in their place.
    """
    own, model, optimizer, _ = made
    inputs, targets = own_batch(runtime, 70)
    runtime.backward(cross_entropy(model(inputs), targets))
    engine: Any = getattr(runtime.strategy, "engine", None)
    gradients = [parameter.grad for parameter in own.parameters() if parameter.grad is not None]
    if engine is not None and engine.zero_optimization_stage() == 2:
        gradients += [part for parts in engine.optimizer.all_grad_tensors.values() for part in parts]
    if engine is not None and engine.zero_optimization_stage() == 3:
        gradients.append(engine.optimizer.grad_partitions_flat_buffer)
    parameters = [getattr(parameter, "ds_tensor", parameter) for parameter in own.parameters()]
    stepped = [group for name in STEPPED for group in getattr(getattr(engine, "optimizer", None), name, [])]
    storages = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    copies = [group for group in stepped if group.untyped_storage().data_ptr() not in storages]
    base = getattr(optimizer, "optimizer", optimizer)
    state = [value for entries in base.state.values() for value in entries.values() if isinstance(value, Tensor)]
    held = {
        "parameters": _bytes(parameters),
        "gradients": _bytes(gradients),
        "state": _bytes(state),
        "copies": _bytes(copies),
    }
    optimizer.step()
    return held


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def say(runtime: torch_hal.Runtime, said: dict[str, Any]) -> None:
    if runtime.is_main_process:
        (OUT / "said.json").write_text(json.dumps(said))
