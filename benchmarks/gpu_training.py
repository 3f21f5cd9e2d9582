"""Trains the network of `gpu_model.py` with one front end after another; `gpu.py` starts it as a process of its own.

The steps of each front end are timed in blocks, with a synchronized device at both ends; the figure is the median. The
loop by hand runs first and last, which shows how exact the figures are.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, cast

import torch
from gpu_model import SIZES, Decoder, batches
from torch import Tensor, nn

from core import Callback, Module, Runtime, Trainer

__all__ = ["CONTENDERS", "main"]

BLOCKS = 5


class Clock:
    """Seconds a step, over blocks of steps; it is told of the beginning of each step."""

    def __init__(self, device: torch.device, warmup: int, steps: int) -> None:
        self.device, self.warmup, self.block = device, warmup, max(steps // BLOCKS, 1)
        self.steps = warmup + self.block * BLOCKS
        self.began, self.seconds = 0.0, list[float]()

    def step(self, number: int) -> None:
        """Step ``number`` begins; ``steps`` means that the last has ended."""
        done = number - self.warmup
        if done >= 0 and done % self.block == 0:
            if self.device.type != "cpu":
                torch.get_device_module(self.device.type).synchronize()
            now = time.perf_counter()
            if done:
                self.seconds.append((now - self.began) / self.block)
            self.began = time.perf_counter()


class Task:
    """What every contender does."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.accelerator: str = options["accelerator"]
        self.size = SIZES[options["size"]]
        self.is_mixed, self.compiles = options["mode"] != "fp32", options["mode"] == "compiled"
        self.backend: str = options.get("backend", "inductor")
        self.device = Runtime(accelerator=self.accelerator, devices=1).device
        self.clock = Clock(self.device, options["warmup"], options["steps"])
        self.batches = batches(self.size, self.clock.steps)
        self.losses: list[Tensor] = []

    def loader(self) -> Any:
        """The batches for a Trainer."""
        return torch.utils.data.DataLoader(cast(Any, self.batches), batch_size=None)

    def network(self) -> nn.Module:
        """The network, with the same weights for all."""
        torch.manual_seed(1)
        return Decoder(self.size)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer."""
        return torch.optim.AdamW(model.parameters(), lr=1e-4)

    def compiled(self, model: nn.Module) -> Any:
        """``model``, compiled if that is the mode."""
        return torch.compile(model, backend=self.backend) if self.compiles else model

    def timed(self, loader: Any) -> Iterator[Tensor]:
        """The batches, and the clock."""
        for number, batch in enumerate(loader):
            self.clock.step(number)
            yield batch
        self.clock.step(self.clock.steps)

    def seen(self, loss: Tensor) -> None:
        """Keep a loss for the comparison at the end; nothing waits for the device."""
        self.losses.append(loss.detach())


def plain(task: Task) -> None:
    """By hand."""
    model = task.network().to(task.device)
    optimizer, run = task.optimizer(model), task.compiled(model)
    mixed = torch.autocast(task.device.type, torch.bfloat16) if task.is_mixed else nullcontext()
    for ids in task.timed(task.batches):
        with mixed:
            loss = run(ids.to(task.device, non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        task.seen(loss)


def runtime(task: Task) -> None:
    """Our own loop."""
    front = Runtime(accelerator=task.accelerator, devices=1, precision="bf16-mixed" if task.is_mixed else "32-true")
    model = task.network()
    optimizer = task.optimizer(model)
    own_loop(task, front, *front.prepare(task.compiled(model), optimizer))
    front.teardown()


def own_loop(task: Task, front: Any, model: Any, optimizer: Any) -> None:
    """A loop whose backward is the front end's."""
    device = task.device
    for ids in task.timed(task.batches):
        loss = model(ids.to(device, non_blocking=True))
        front.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        task.seen(loss)


def trainer(task: Task) -> None:
    """Our Trainer, without bar, logger and checkpoints."""

    class Net(Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.compiled(task.network())

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            loss: Tensor = self.model(batch)
            task.seen(loss)
            return loss

        def configure_optimizers(self) -> Any:
            return task.optimizer(self)

    class Timed(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            task.clock.step(batch_idx)

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            task.clock.step(task.clock.steps)

    Trainer(
        accelerator=task.accelerator,
        devices=1,
        precision="bf16-mixed" if task.is_mixed else "32-true",
        max_epochs=1,
        callbacks=Timed(),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Net(), task.loader())


def accelerate(task: Task) -> None:
    """Accelerate."""
    from accelerate import Accelerator

    front = Accelerator(mixed_precision="bf16" if task.is_mixed else "no", cpu=task.device.type == "cpu")
    model = task.network()
    optimizer = task.optimizer(model)
    own_loop(task, front, *front.prepare(task.compiled(model), optimizer))
    front.free_memory()


def fabric(task: Task) -> None:
    """Fabric."""
    from lightning.fabric import Fabric

    front = Fabric(accelerator=lightnings(task), devices=1, precision="bf16-mixed" if task.is_mixed else "32-true")
    front.launch()
    model = task.network()
    optimizer = task.optimizer(model)
    own_loop(task, front, *front.setup(task.compiled(model), optimizer))


def lightning(task: Task) -> None:
    """Lightning's Trainer, with everything off that ours has off."""
    from lightning import pytorch

    class Net(pytorch.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = task.compiled(task.network())

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            loss: Tensor = self.model(batch)
            task.seen(loss)
            return loss

        def configure_optimizers(self) -> Any:
            return task.optimizer(self)

    class Timed(pytorch.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            task.clock.step(batch_idx)

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            task.clock.step(task.clock.steps)

    pytorch.Trainer(
        accelerator=lightnings(task),
        devices=1,
        precision="bf16-mixed" if task.is_mixed else "32-true",
        max_epochs=1,
        callbacks=[Timed()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Net(), task.loader())


def lightnings(task: Task) -> str:
    """Lightning's name of the accelerator."""
    return "cpu" if task.device.type == "cpu" else "gpu"


CONTENDERS: dict[str, tuple[Callable[[Task], None], str]] = {
    "plain torch": (plain, "torch"),
    "torch-hal Runtime": (runtime, "torch"),
    "torch-hal Trainer": (trainer, "torch"),
    "Accelerate": (accelerate, "accelerate"),
    "Fabric": (fabric, "lightning"),
    "Lightning": (lightning, "lightning"),
    "plain torch, again": (plain, "torch"),
}
"""Each with the package that it needs."""


def measure(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The row of one contender: figures, or why there are none."""
    train, package = CONTENDERS[name]
    row: dict[str, Any] = {"name": name, "mode": options["mode"], "size": options["size"]}
    if importlib.util.find_spec(package) is None:
        return row | {"error": f"{package} is not installed"}
    if time.time() > options["until"]:
        return row | {"error": "not run: no time was left"}
    try:
        task = Task(options)
        module: Any = torch.get_device_module(task.device.type) if task.device.type != "cpu" else None
        if hasattr(module, "reset_peak_memory_stats"):
            module.reset_peak_memory_stats()
        train(task)
    except Exception as error:  # noqa: BLE001 - the failure of a front end is a row of the table
        return row | {
            "error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:300]
        }
    seconds = statistics.median(task.clock.seconds)
    row |= {"milliseconds": seconds * 1e3, "tokens_per_second": task.size.tokens / seconds}
    row |= {"spread_milliseconds": (max(task.clock.seconds) - min(task.clock.seconds)) * 1e3}
    if hasattr(module, "max_memory_allocated"):
        row["peak_memory_bytes"] = module.max_memory_allocated()
    return row | {"first_loss": float(task.losses[0]), "last_loss": float(task.losses[-1])}


def main() -> None:
    """Write a line of JSON for each contender, as it is done."""
    options = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("high")
    for name in options["names"] or CONTENDERS:
        row = measure(name, options)
        gc.collect()
        if options["mode"] == "compiled":
            torch.compiler.reset()
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
