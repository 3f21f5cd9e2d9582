"""Trains with frequent checkpoints, for tests that kill it: ``killed.py STRATEGY DEVICES IO WORKERS go|resume``.

``killed.py template`` has imported everything. For each line of its input, ``OUT SETUP…``, it forks a process that runs
this script as if Python had just started it; it prints the process's ID, and when that has ended its exit code.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Strategy, Trainer, seed_everything
from core.callbacks import ModelCheckpoint
from core.checkpoints import AsyncCheckpointIO, CheckpointIO, ShardedCheckpointIO, TorchCheckpointIO, latest

IOS: dict[str, Any] = {
    "torch": TorchCheckpointIO,
    "sharded": ShardedCheckpointIO,
    "async": AsyncCheckpointIO,
    "async-sharded": lambda: AsyncCheckpointIO(ShardedCheckpointIO()),
    "safetensors": lambda: "safetensors",
}


class Net(Module):
    """Its batches differ and its layer drops out: what a resumed run does depends on all of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 2))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        time.sleep(0.002)
        loss: torch.Tensor = (self.layers(batch[0]) + torch.rand(2) / 50).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Record(Callback):
    """Notes each checkpoint that can be found after a step, and where the processes are."""

    def __init__(self, out: Path) -> None:
        self.out, self.last = out, ""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        (self.out / f"pid.{trainer.global_rank}").write_text(str(os.getpid()))

    def on_train_end(self, trainer: Any, module: Any) -> None:
        digest = hashlib.sha256()
        for key, value in sorted(module.state_dict().items()):
            full = value.full_tensor() if hasattr(value, "full_tensor") else value
            digest.update(key.encode() + full.detach().numpy().tobytes())
        digest.update(str(trainer.progress.step).encode() + torch.get_rng_state().numpy().tobytes())
        (self.out / f"end.{trainer.global_rank}").write_text(digest.hexdigest())

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_rank == 0 and (found := latest(self.out / "saved")) is not None and found.name != self.last:
            self.last = found.name
            with open(self.out / "commits", "a", encoding="utf-8") as file:
                file.write(f"{found.name}\n")


def main() -> None:
    strategy, devices, name, workers, mode = sys.argv[1:]
    out = Path(os.environ["OUT"])
    io: CheckpointIO | str = IOS[name]()
    spread: Strategy | str = strategy
    if (strategy, name) == ("fsdp", "torch"):  # process 0 writes, so it needs whole tensors
        spread = importlib.import_module("torch_hal_fsdp").FSDPStrategy(state_dict_type="full")
    seed_everything(1 if mode == "go" or latest(out / "saved") is None else 2)
    torch.manual_seed(3)
    module = Net()
    seed_everything(1 if mode == "go" or latest(out / "saved") is None else 2)
    saving = ModelCheckpoint(out / "saved", every_n_train_steps=2, monitor="step", mode="max", save_top_k=3)
    trainer = Trainer(
        accelerator="cpu",
        strategy=spread,
        devices=int(devices),
        max_epochs=2,
        checkpoint_io=io,
        callbacks=[saving, Record(out)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = TensorDataset(torch.randn(53, 6, generator=torch.Generator().manual_seed(4)))
    order = torch.Generator().manual_seed(5)
    loader = DataLoader(data, batch_size=2, shuffle=True, num_workers=int(workers), generator=order)
    trainer.fit(module, loader, ckpt_path="last" if mode == "resume" and latest(out / "saved") else None)


def template() -> None:
    """Say that it is ready; then fork a process for each line of the input."""
    print("ready", flush=True)
    for line in sys.stdin:
        out, *argv = line.split()
        child = os.fork()
        if not child:
            os.setsid()
            os.chdir(out)
            os.environ["OUT"] = out
            with open(os.path.join(out, "log"), "ab") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), 0)
            if argv[0] == "-m":
                sys.argv = argv[1:]
                sys.orig_argv[1:] = argv
                runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
            else:
                sys.argv = [__file__, *argv]
                sys.orig_argv[1:] = sys.argv
                runpy.run_path(__file__, run_name="__main__")
            sys.exit()
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "template":
        torch.set_num_threads(1)
        template()
    else:
        main()
