"""Two models, their batches, one training loop for every strategy, and a Module for the Trainer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.data import DataLoader, TensorDataset

import torch_hal
from torch_hal import Runtime
from torch_hal.callbacks import ModelCheckpoint

OUT = Path(os.environ["OUT"])
VOCABULARY, LENGTH = 32, 12


class MLP(nn.Module):
    """For vectors of 64 numbers, as a picture of a digit has."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, batch: Tensor) -> Tensor:
        logits: Tensor = self.net(batch)
        return logits


class Block(nn.Module):
    """One layer of the transformer; its heads may be divided."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        # A gradient of a key's bias would be zero but for rounding, of which AdamW makes whole steps.
        self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(3))
        self.key = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = width // 4

    def forward(self, x: Tensor) -> Tensor:
        inner = self.before(x)
        query, key, value = (
            divided(inner).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for divided in (self.query, self.key, self.value)
        )
        x = x + self.out(scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        y: Tensor = x + self.down(gelu(self.up(self.between(x))))
        return y


class Transformer(nn.Module):
    """A few layers, for texts of twelve tokens."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {
        **{f"layers.*.{name}": "colwise" for name in ("query", "key", "value", "up")},
        **{f"layers.*.{name}": "rowwise" for name in ("out", "down")},
    }
    _no_split_modules: ClassVar[list[str]] = ["Block"]

    def __init__(self, width: int = 32, tied: bool = False, depth: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.scores.weight = self.words.weight

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.scores(self.norm(x))
        return scores


def batch_of(model: nn.Module, number: int) -> tuple[Tensor, Tensor]:
    """Eight items for all processes, the same wherever it is asked."""
    generator = torch.Generator().manual_seed(number)
    if isinstance(model, MLP):
        return torch.randn(8, 64, generator=generator), torch.randint(10, (8,), generator=generator)
    text = torch.randint(VOCABULARY, (8, LENGTH + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def own_batch(runtime: Runtime, model: nn.Module, number: int) -> tuple[Tensor, Tensor]:
    """This process's share of it, on its device."""
    strategy = runtime.strategy
    inputs, targets = (part.tensor_split(strategy.data_shards)[strategy.data_shard] for part in batch_of(model, number))
    return inputs.to(runtime.device), targets.to(runtime.device)


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


Made = tuple[nn.Module, nn.Module, torch.optim.Optimizer]


def make(runtime: Runtime, build: Callable[[], nn.Module], meta: bool = False, **options: Any) -> Made:
    """The user's model, the prepared one, and an optimizer that was made before."""
    torch.manual_seed(0)
    runtime.launch()
    with torch.device("meta") if meta else nullcontext():
        own = build()
    prepared, optimizer = runtime.prepare(own, torch.optim.AdamW(own.parameters(), lr=1e-2, **options))
    return own, prepared, optimizer


def train(
    runtime: Runtime,
    made: Made,
    steps: int = 6,
    accumulate: int = 1,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    first: int = 0,
) -> dict[str, list[float]]:
    """Some steps; returns the losses over all processes, and the norms before clipping."""
    own, model, optimizer = made
    losses, norms = [], []
    for step in range(first, first + steps):
        total = torch.zeros((), device=runtime.device)
        for part in range(accumulate):
            with nullcontext() if part == accumulate - 1 else runtime.no_sync(model):
                loss = loss_of(model, *own_batch(runtime, own, step * accumulate + part)) / accumulate
                runtime.backward(loss)
                total += loss.detach()
        if clip_norm is not None:
            norm = runtime.clip_grad_norm_(model.parameters(), clip_norm)
            assert norm is not None
            norms.append(float(norm))
        if clip_value is not None:
            runtime.clip_grad_value_(model.parameters(), clip_value)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(runtime.reduce(total, "mean")))
    return {"losses": losses, "norms": norms}


def evaluate(runtime: Runtime, made: Made) -> float:
    """The loss on batches that were not trained on."""
    own, model, _ = made
    with torch.no_grad():
        losses = [loss_of(model, *own_batch(runtime, own, 1000 + number)) for number in range(3)]
    return float(runtime.reduce(torch.stack(losses).mean(), "mean"))


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model, whole and on the host; every process calls it."""
    whole = {}
    for name, tensor in model.state_dict().items():
        whole[name] = (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()
    return whole


def bytes_held(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, gradients and optimizer state in this process: of the storages, padding and all."""
    tensors: list[Any] = [*model.parameters(), *(parameter.grad for parameter in model.parameters())]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors if isinstance(t, Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in local}
    return sum(storages.values())


def say(runtime: Runtime, said: dict[str, Any]) -> None:
    """Leave ``said`` for the test, from process 0; what is in it may be gathered before."""
    if runtime.is_main_process:
        (OUT / "said.json").write_text(json.dumps(said))


class Lesson(torch_hal.Module):
    """The transformer, with dropout before its scores, a learning rate schedule, and predictions that tell the item."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Transformer()
        self.dropout = torch.nn.Dropout(0.1)
        self.scale = torch.nn.Parameter(torch.empty(1))
        self.reset_parameters()
        self.seen: list[float] = []

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.scale)

    def forward(self, text: Tensor) -> Tensor:
        scores: Tensor = self.dropout(self.model(text)) * self.scale
        return scores

    def _loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        text = batch[0]
        return cross_entropy(self(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        loss = self._loss(batch)
        self.seen.append(float(loss.detach()))
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        norms = [parameter.grad.norm() for parameter in self.parameters() if parameter.grad is not None]
        self.log("grad_norm", torch.stack(norms).norm())

    def validation_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        self.log("loss", self._loss(batch))
        self.log("items", len(batch[0]), reduce_fx="sum")

    def predict_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        return torch.stack([batch[0].sum(1).float(), self(batch[0][:, :-1]).float().mean((1, 2))], 1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def data(items: int, seed: int, shuffle: bool = False) -> DataLoader[Any]:
    """Batches of four texts."""
    text = torch.randint(VOCABULARY, (items, LENGTH + 1), generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(text), batch_size=4, shuffle=shuffle)


def trainer(strategy: Any, devices: int, name: str, epochs: int = 2, **options: Any) -> torch_hal.Trainer:
    """Keeps its checkpoints under ``name``."""
    torch_hal.seed_everything(3)
    options = {"accelerator": "cpu", "enable_progress_bar": False, "gradient_clip_val": 0.5, **options}
    if options.get("enable_checkpointing", True):
        saving = ModelCheckpoint(OUT / name / "checkpoints", save_top_k=-1)
        options["callbacks"] = [*options.get("callbacks", ()), saving]
    return torch_hal.Trainer(strategy=strategy, devices=devices, max_epochs=epochs, **options)


def numbers(tensors: Iterator[Tensor] | list[Tensor]) -> list[float]:
    return [float(number) for tensor in tensors for number in tensor.flatten()]
