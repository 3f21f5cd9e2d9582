"""Leaves a run whose loaders have workers: ``leaves_at.py WAY LOOP LOADER CONTEXT STRATEGY``."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from core import Callback, Module, Runtime, Trainer
from core.data import CombinedLoader

WAY, LOOP, LOADER, CONTEXT, STRATEGY = sys.argv[1:]
BAD = 9 if STRATEGY == "auto" else 20
"""The item that a worker ends or hangs at, read ahead of the batch at which the run is left otherwise."""


KILLED_FIRST = WAY == "parent killed" and STRATEGY == "auto"
"""Whether the worker does it before its first line; ranks are forked and unpickled too, and must not."""


def kill(parent: int) -> None:
    with suppress(ProcessLookupError):  # by the other worker
        os.kill(parent, signal.SIGKILL)
    time.sleep(1)


def starter() -> int:
    parent: Any = multiprocessing.parent_process()
    return int(parent.pid)


def after_fork() -> None:
    if KILLED_FIRST:
        kill(os.getppid())


def begin_worker(worker_id: int) -> None:
    """Before torch's first look at the parent."""
    kill(starter())


class Items(Dataset[torch.Tensor]):
    """Whose item `BAD` ends or holds the worker that reads it."""

    def __init__(self, is_bad: bool) -> None:
        self.is_bad, self.starter = is_bad, os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        if KILLED_FIRST:
            kill(state["starter"])
        self.__dict__.update(state)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.is_bad and index == BAD:
            if WAY == "worker raises":
                raise ValueError("bad sample")
            if WAY == "worker exits":
                os._exit(1)
            if WAY == "parent killed later":
                kill(starter())
            if WAY in ("worker hangs", "parent killed later"):
                time.sleep(1000)
            if WAY in ("SIGKILL", "SIGSEGV"):
                os.kill(os.getpid(), getattr(signal, WAY))
        return torch.full((4,), index / 100)


class Generates(DataLoader[torch.Tensor]):
    """Starts its workers at its first batch."""

    def __iter__(self) -> Iterator[torch.Tensor]:  # type: ignore[override]
        yield from super().__iter__()


class Holds:
    """No DataLoader, but has one."""

    def __init__(self, loader: DataLoader[torch.Tensor]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.loader)


def loader_of(loop: str) -> Any:
    kind = Generates if LOADER == "generator" else DataLoader
    loader = kind(
        Items(loop == LOOP),
        2,
        num_workers=2,
        worker_init_fn=begin_worker if WAY == "parent killed" and not KILLED_FIRST else None,
        multiprocessing_context=CONTEXT,
        persistent_workers=LOADER == "persistent",
    )
    return Holds(loader) if LOADER == "held" else loader


def reach(loop: str, batch_idx: int, trainer: Any = None) -> None:
    """Leave the loop at its fourth batch."""
    if loop != LOOP or batch_idx != 3:
        return
    if WAY in ("step", "worker hangs"):
        raise ValueError("planted")
    if WAY == "exit":
        sys.exit(5)
    if WAY == "interrupt":
        raise KeyboardInterrupt
    if WAY == "stop" and trainer is not None:
        trainer.should_stop = True


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        reach("train", batch_idx, self.trainer)
        loss: torch.Tensor = self.layer(batch["a"] if LOADER == "combined" else batch).square().mean()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        reach("validate", batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        reach("test", batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        reach("predict", batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Fails(Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if WAY == "callback" and batch_idx == 3:
            raise ValueError("planted")


def own_loop() -> None:
    """A user's own, which does not end the run: neither does it leave a context, nor call ``end_training``."""
    runtime = Runtime(accelerator="cpu", strategy=STRATEGY, devices=1 if STRATEGY == "auto" else 2)
    loader = loader_of("own")
    is_whole = LOADER == "held" and STRATEGY != "auto"  # which ranks cannot divide
    loader = runtime.prepare_data_loader(loader, sharded=True) if is_whole else runtime.prepare(loader)
    for number, _ in enumerate(loader):
        if WAY == "break" and number == 3:
            break
        reach("own", number)
    print("went on", flush=True)


def main() -> None:
    trainer = Trainer(
        accelerator="cpu",
        strategy=STRATEGY,
        devices=1 if STRATEGY == "auto" else 2,
        max_epochs=2,
        callbacks=[Fails()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if LOOP in ("train", "validate"):
        train = loader_of("train")
        if LOADER == "combined":
            train = CombinedLoader({"a": train, "b": loader_of("other")}, "max_size_cycle")
        trainer.fit(Net(), train, loader_of("validate"))
    else:
        getattr(trainer, LOOP)(Net(), loader_of(LOOP))
    print("went on", flush=True)


if __name__ == "__main__":
    os.register_at_fork(after_in_child=after_fork)
    (Path(os.environ["OUT"]) / f"began.{os.environ.get('RANK', 0)}").touch()
    own_loop() if LOOP == "own" else main()
