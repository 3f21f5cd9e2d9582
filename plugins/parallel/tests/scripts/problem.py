"""A transformer that every parallelism can divide, its batches, and training of it by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import SequenceParallel
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch_hal_parallel import positions

from torch_hal import Runtime

OUT = Path(os.environ["OUT"])
VOCABULARY, LENGTH, ITEMS = 32, 12, 16
HEADS = 12
"""Divided by two, three and four processes."""


class Embedding(nn.Module):
    """Of words and of their positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)

    def forward(self, text: Tensor) -> Tensor:
        embedded: Tensor = self.words(text) + self.places(positions(text.shape[1], text.device))
        return embedded


class Scale(nn.Module):
    """For each head: of those in this process."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Block(nn.Module):
    """One layer; its heads may be divided."""

    def __init__(self, width: int, noisy: bool) -> None:
        super().__init__()
        self.noise = nn.Sequential(nn.Dropout(0.2), nn.BatchNorm1d(LENGTH)) if noisy else nn.Identity()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        # A gradient of a key's bias would be zero but for rounding, of which AdamW makes whole steps.
        self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(3))
        self.key = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = width // HEADS
        self.scale = Scale(self.head)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.before(x)
        query, key, value = (
            layer(inner).unflatten(-1, (-1, self.head)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        query = self.scale(query)
        x = x + self.out(scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        y: Tensor = x + self.noise(self.down(gelu(self.up(self.between(x)))))
        return y


class Transformer(nn.Module):
    """Some layers, for texts of twelve tokens."""

    tensor_parallel_plan: ClassVar[dict[str, Any]] = {
        "layers.*.scale": SequenceParallel(sequence_dim=1, use_local_output=True),
        **{f"layers.*.{name}": "colwise" for name in ("query", "key", "value", "up")},
        **{f"layers.*.{name}": "rowwise" for name in ("out", "down")},
    }
    pipeline_plan: ClassVar[list[str]] = ["embedding", "layers.*", "norm", "scores"]

    def __init__(self, layers: int = 4, width: int = 24, noisy: bool = False) -> None:
        super().__init__()
        self.embedding = Embedding(width)
        self.layers = nn.ModuleList(Block(width, noisy) for _ in range(layers))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text)
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.scores(self.norm(x))
        return scores


def batch_of(number: int) -> tuple[Tensor, Tensor]:
    """Sixteen texts for all processes, the same wherever it is asked."""
    text = torch.randint(VOCABULARY, (ITEMS, LENGTH + 1), generator=torch.Generator().manual_seed(number))
    return text[:, :-1], text[:, 1:]


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(scores.flatten(0, -2), targets.flatten())


def make() -> tuple[Transformer, torch.optim.Optimizer]:
    """The same model everywhere, and its optimizer."""
    torch.manual_seed(0)
    model = Transformer()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(
    runtime: Runtime,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    first: int = 0,
    steps: int = 5,
    accumulate: int = 1,
    clip: float | None = None,
    clip_value: float | None = None,
    items: int | None = None,
) -> dict[str, list[float]]:
    """Some steps in an own loop; returns the losses over all processes, and the norms before clipping.

    Batches have the first ``items`` of their texts, or all of them.
    """
    strategy: Any = runtime.strategy
    losses, norms = [], []
    for step in range(first, first + steps):
        total = torch.zeros((), device=runtime.device)
        for part in range(accumulate):
            inputs, targets = (
                one[:items].tensor_split(strategy.data_shards)[strategy.data_shard].to(runtime.device)
                for one in batch_of(step * accumulate + part)
            )
            if part < accumulate - 1:
                with runtime.no_sync(model):
                    total += forward_backward(runtime, model, inputs, targets, accumulate)
            else:
                total += forward_backward(runtime, model, inputs, targets, accumulate)
        if clip is not None:
            norm = runtime.clip_grad_norm_(model.parameters(), clip)
            assert norm is not None
            norms.append(float(norm))
        if clip_value is not None:
            runtime.clip_grad_value_(model.parameters(), clip_value)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(runtime.reduce(total, "mean")))
    return {"losses": losses, "norms": norms}


def forward_backward(runtime: Runtime, model: nn.Module, inputs: Tensor, targets: Tensor, accumulate: int) -> Tensor:
    strategy: Any = runtime.strategy
    if hasattr(strategy, "forward_backward"):
        loss: Tensor = strategy.forward_backward(model, inputs, targets, lambda y, t: loss_of(y, t) / accumulate)
        return loss
    own = loss_of(model(inputs), targets) / accumulate
    runtime.backward(own)
    return own.detach()


def evaluate(runtime: Runtime, model: nn.Module) -> float:
    """The loss on texts that were not trained on."""
    inputs, targets = (one.to(runtime.device) for one in batch_of(1000))
    with torch.no_grad():
        return float(loss_of(model(inputs), targets))


def say(runtime: Runtime, said: dict[str, Any]) -> None:
    """Leave ``said`` for the test, from process 0."""
    if runtime.is_main_process:
        (OUT / "said.json").write_text(json.dumps(said))
