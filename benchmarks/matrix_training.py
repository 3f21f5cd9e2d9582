"""What each process of a cell does: a few steps with a tiny model, and a report of what it saw.

``python matrix_training.py CELL FOLDER`` is that too, for launchers that start a script.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from matrix_cells import Cell, construct
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import core

__all__ = ["judge", "train"]

ITEMS, BATCH_SIZE, FEATURES, EPOCHS = 64, 8, 16, 3
FALLS_TO = 0.8
"""The last epoch's mean loss, as a part of the first one's, at most."""

DTYPES = {
    "64-true": ("float64", "float64"),
    "32-true": ("float32", "float32"),
    "16-true": ("float16", "float16"),
    "bf16-true": ("bfloat16", "bfloat16"),
    "16-mixed": ("float32", "float16"),
    "bf16-mixed": ("float32", "bfloat16"),
}
"""By precision: what parameters are stored in, and what a layer computes in."""

OWN_WEIGHTS = {"bagua_async", "bagua_decentralized", "bagua_low_precision_decentralized"}
"""Strategies that bring the processes' weights together without making them equal."""


class Block(nn.Module):
    """One layer, two of which can be divided by a tensor parallel plan."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(FEATURES, 2 * FEATURES), nn.Linear(2 * FEATURES, FEATURES)
        self.computed: set[str] = set()
        """The dtypes in which it has computed with gradients."""

    def forward(self, x: Tensor) -> Tensor:
        """As the shapes say."""
        inner = self.up(x)
        if torch.is_grad_enabled():
            self.computed.add(_plain(inner.dtype))
        moved: Tensor = self.down(torch.relu(inner))
        return x + moved


class Net(nn.Module):
    """Two blocks and what makes a number of it."""

    tensor_parallel_plan: ClassVar[dict[str, str]] = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last = nn.Linear(FEATURES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Of shape ``(items, 1)``."""
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.last(x)
        return result


def data() -> TensorDataset:
    """Something to learn, the same in each process."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(ITEMS, FEATURES, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True).mul(0.5).tanh())


def probe() -> TensorDataset:
    """Items that are all alike, so that every process gets the same whatever its share."""
    inputs = torch.linspace(-1, 1, FEATURES).expand(8, FEATURES)
    return TensorDataset(inputs, torch.zeros(8, 1))


def make_optimizer(strategy: str, module: nn.Module) -> torch.optim.Optimizer:
    """One that every strategy and precision takes; ``bagua_qadam`` its own, past its warm-up after a few steps."""
    if strategy == "bagua_qadam":
        optimizer: torch.optim.Optimizer = importlib.import_module("torch_hal_bagua").QAdamOptimizer(
            module.parameters(), lr=3e-3, warmup_steps=6
        )
        return optimizer
    return torch.optim.SGD(module.parameters(), lr=0.05)


# -- the two front ends ----------------------------------------------------------------------------------------------


def train(cell: Cell, folder: Path, rank: int) -> None:
    """Run the cell in this process, which is process ``rank`` if it was started as one of several."""
    torch.manual_seed(rank)  # each process begins with its own weights; a strategy makes them alike
    front_end = construct(cell, max_epochs=EPOCHS, default_root_dir=folder)
    if cell.front_end == "Runtime":
        with front_end:
            front_end.launch(_own_loop, cell, str(folder))
    else:
        front_end.fit(Lesson(cell, str(folder)), DataLoader(data(), BATCH_SIZE), DataLoader(probe(), 1))


def _own_loop(runtime: core.Runtime, cell: Cell, folder: str) -> None:
    net = Net()
    loader: Any
    model, optimizer, loader = runtime.prepare(net, make_optimizer(cell.strategy, net), DataLoader(data(), BATCH_SIZE))
    losses = []
    for _ in range(EPOCHS):
        of_epoch = []
        for inputs, targets in loader:
            loss = mse_loss(model(inputs), targets.to(_floating(runtime)))
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            of_epoch.append(loss.detach())
        losses.append(_mean(of_epoch))
    stored = _dtypes(net)
    with torch.no_grad():
        answers = model(probe().tensors[0])
    report(runtime.strategy, net, stored, losses, answers, folder)


def _floating(runtime: core.Runtime) -> torch.dtype:
    return runtime.strategy.precision.output_dtype


class Lesson(core.Module):
    """The same in the Trainer's loop.

    Args:
        cell: Which.
        folder: Where reports go.
    """

    def __init__(self, cell: Cell, folder: str) -> None:
        super().__init__()
        self.net = Net()
        self.cell, self.folder = cell, folder
        self.losses: list[float] = []
        self.of_epoch: list[Tensor] = []
        self.answers: list[Tensor] = []
        self.stored: list[str] = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """See what parameters are stored in between two steps: during a pass, they may be gathered in another dtype."""
        if batch_idx:
            self.stored = _dtypes(self.net)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The mean squared error."""
        inputs, targets = batch
        loss = mse_loss(self.net(inputs), targets)
        self.of_epoch.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        """Keep the epoch's loss."""
        self.losses.append(_mean(self.of_epoch))
        self.of_epoch = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Keep what it says to the probe."""
        self.answers.append(self.net(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """See :func:`make_optimizer`."""
        return make_optimizer(self.cell.strategy, self)

    def on_fit_end(self) -> None:
        """Report."""
        report(self.trainer.strategy, self.net, self.stored, self.losses, self.answers[-1], self.folder)


# -- what is reported and judged -------------------------------------------------------------------------------------


def report(strategy: Any, net: Net, stored: list[str], losses: list[float], answers: Tensor, folder: str) -> None:
    """Write what this process saw, while the run is live."""
    rank = strategy.global_rank
    total = strategy.reduce(torch.tensor(float(rank + 1)), "sum")
    seen = {
        "rank": rank,
        "world_size": strategy.world_size,
        "strategy": strategy.name,
        "precision": strategy.precision.name,
        "sum": float(total),
        "losses": losses,
        "stored": stored,
        "computed": sorted({dtype for block in net.blocks for dtype in block.computed}),  # type: ignore[union-attr]
        "weights": None if strategy.inference_is_collective else _digest(net),
        "answers": answers.detach().double().flatten().tolist(),
        "group": dist.get_backend() if dist.is_initialized() else None,
    }
    Path(folder, f"rank{rank}.json").write_text(json.dumps(seen), "utf-8")


def judge(cell: Cell, seen: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with what the processes reported; nothing where the cell works."""
    if len(seen) != cell.ranks:
        return [f"{len(seen)} of {cell.ranks} process(es) came to the end"]
    wrong = [fault for one in seen for fault in _faults(cell, one)]
    if cell.strategy not in OWN_WEIGHTS:
        wrong += [f"{what} differ between processes" for what in ("weights", "answers") if _differ(seen, what)]
    return wrong


def _faults(cell: Cell, seen: dict[str, Any]) -> list[str]:
    losses, (stored, computed) = seen["losses"], DTYPES[cell.precision]
    expected = {
        "world_size": cell.ranks,
        "strategy": cell.strategy,
        "precision": cell.precision,
        "sum": cell.ranks * (cell.ranks + 1) / 2,
        "stored": [stored],
        "computed": [computed],
    }
    who = f"process {seen['rank']}: "
    wrong = [f"{who}{name} is {seen[name]!r}, not {value!r}" for name, value in expected.items() if seen[name] != value]
    if len(losses) != EPOCHS or not all(map(math.isfinite, [*losses, *seen["answers"]])):
        wrong.append(f"{who}losses {losses}, answers {seen['answers']}: not all are numbers")
    elif losses[-1] > FALLS_TO * losses[0]:
        wrong.append(f"{who}losses {losses} do not fall")
    return wrong


def _differ(seen: Sequence[dict[str, Any]], what: str) -> bool:
    return any(one[what] != seen[0][what] for one in seen)


def _digest(net: nn.Module) -> str:
    content = hashlib.sha256()
    for parameter in net.parameters():
        content.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def _dtypes(net: nn.Module) -> list[str]:
    return sorted({_plain(parameter.dtype) for parameter in net.parameters()})


def _mean(losses: list[Tensor]) -> float:
    return float(torch.stack(losses).double().mean())


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    train(Cell.from_json(sys.argv[1]), Path(sys.argv[2]), int(os.environ["HOROVOD_RANK"]))
