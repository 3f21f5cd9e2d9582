"""A process of `matrix.py`: says what starts the processes of cells, or trains one cell and reports what it saw.

python matrix_worker.py resolve ANSWERS CELL...
python matrix_worker.py train FOLDER CELL
"""

from __future__ import annotations

import faulthandler
import hashlib
import importlib
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import core
from core.errors import CoreError

__all__ = ["FRONT_ENDS", "PRECISIONS", "RANKS", "Cell", "judge"]

FRONT_ENDS = ("Runtime", "Trainer")
RANKS = (1, 2)
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
PRECISIONS = tuple(DTYPES)

OWN_WEIGHTS = {"bagua_async", "bagua_decentralized", "bagua_low_precision_decentralized"}
"""Strategies that bring the processes' weights together without making them equal."""

HANGS_AFTER = 100
"""Seconds after which a process shows where it is."""

_NAMES_AN_ARGUMENT = re.compile(r"[a-z_]+(\[[^]]*\])*=|[a-z_]+(, [a-z_]+)*: ")


class Cell(NamedTuple):
    """One strategy in one precision, by one front end, in so many processes on the CPU."""

    strategy: str
    precision: str
    front_end: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.strategy} {self.precision} {self.front_end} x{self.ranks}"


def construct(cell: Cell, **more: Any) -> Any:
    """The front end that the cell names, as a user makes it; ``more`` is for a Trainer."""
    arguments: dict[str, Any] = {"strategy": cell.strategy, "precision": cell.precision, "devices": cell.ranks}
    if cell.front_end == "Runtime":
        return core.Runtime(accelerator="cpu", **arguments)
    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False}
    return core.Trainer(accelerator="cpu", **arguments, **{**quiet, **more})


def resolve(cell: Cell) -> tuple[str, str]:
    """Make the front end in this process, which must start nothing and meet no one.

    Returns:
        What starts the cell's processes; or ``"refused"`` or ``"failed"``, and why.
    """
    # As horovodrun tells process 0; torchrun is asked for by the Plan.
    sizes = {"RANK": 0, "LOCAL_RANK": 0, "CROSS_RANK": 0, "CROSS_SIZE": 1, "SIZE": cell.ranks, "LOCAL_SIZE": cell.ranks}
    by_horovod = cell.strategy == "horovod" and cell.ranks > 1
    added = {f"HOROVOD_{name}": str(number) for name, number in sizes.items()} if by_horovod else {}
    os.environ.update(added)
    try:
        plan = construct(cell).plan
        kind, text = "itself" if plan.world_size == 1 or plan.runs_function else "torchrun", ""
        kind = "horovodrun" if by_horovod else kind
    except CoreError as error:
        kind, text = "refused", str(error)
        if not (repr(cell.strategy) in text or repr(cell.precision) in text or _NAMES_AN_ARGUMENT.match(text)):
            kind, text = "failed", f"the refusal names neither strategy, precision nor an argument: {text}"
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it is, it is a finding
        kind, text = "failed", f"not refused by name, but {type(error).__name__}: {error}"
    for name in added:
        del os.environ[name]
    horovod = sys.modules.get("horovod.torch")
    if dist.is_initialized() or (horovod is not None and horovod.is_initialized()):
        kind, text = "failed", f"making the front end joined a process group. {text}"
    with suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
        kind, text = "failed", f"making the front end started a process. {text}"
    return kind, text


class Block(nn.Module):
    """One layer, two of which can be divided by a tensor parallel plan."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(FEATURES, 2 * FEATURES), nn.Linear(2 * FEATURES, FEATURES)
        self.computed: set[str] = set()
        """The dtypes in which it has computed with gradients."""

    def forward(self, x: Tensor) -> Tensor:
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
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.last(x)
        return result


def data() -> TensorDataset:
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
        inputs, targets = batch
        loss = mse_loss(self.net(inputs), targets)
        self.of_epoch.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        self.losses.append(_mean(self.of_epoch))
        self.of_epoch = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Keep what it says to the probe."""
        self.answers.append(self.net(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return make_optimizer(self.cell.strategy, self)

    def on_fit_end(self) -> None:
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


def main() -> None:
    what, path, *cells = sys.argv[1], Path(sys.argv[2]), *(Cell(*json.loads(text)) for text in sys.argv[3:])
    if what == "resolve":
        path.write_text(json.dumps([resolve(cell) for cell in cells]), "utf-8")
        return
    faulthandler.dump_traceback_later(HANGS_AFTER)
    train(cells[0], path, int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", "0"))))
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
