"""Three processes that train, one of which fails at a moment: ``dies_at.py WAY LIMIT [START_METHOD]``."""

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import Any

WAY, LIMIT = sys.argv[1], float(sys.argv[2])
START_METHOD = sys.argv[3] if len(sys.argv) > 3 else ""
VICTIM = os.environ.get("RANK") == "1"
WORKERS = 0 if WAY in ("stop and go", "callback end") else 2
"""A fault is harder with workers of the loaders, which must end too."""


def tell() -> None:
    print(f"dying at {time.monotonic()}", flush=True)


if VICTIM and WAY == "import":
    tell()
    raise ImportError("planted")
if VICTIM and WAY == "import exit":
    tell()
    sys.exit(3)
if VICTIM and WAY == "import kill":
    tell()
    os.kill(os.getpid(), signal.SIGKILL)
if VICTIM and WAY == "never":
    tell()
    time.sleep(600)
if VICTIM and WAY == "late":
    tell()
    time.sleep(15)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from core import Callback, Module, Runtime, Trainer  # noqa: E402
from core.strategies import DDPStrategy  # noqa: E402


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_rank == 1 and batch_idx == 5:
            if WAY == "outside":
                tell()
                time.sleep(600)
            if WAY.startswith("stop"):
                tell()
                os.kill(os.getpid(), signal.SIGSTOP)
            if WAY.startswith("input"):
                tell()
                input("Name of the run? ")
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if self.global_rank == 1 and WAY.startswith("validation"):
            tell()
            if WAY == "validation kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("planted")
        self.log("loss", self.layer(batch[0]).square().mean(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Fails(Callback):
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_rank == 1 and WAY == "callback" and trainer.global_step == 5:
            tell()
            raise KeyError("planted")

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_rank == 1 and WAY == "callback end":
            tell()
            raise KeyError("planted")


def kill_soon() -> None:
    time.sleep(1)
    tell()
    os.kill(os.getpid(), signal.SIGKILL)


def stay_in_barrier(runtime: Runtime) -> None:
    """Rank 2 does not come, and rank 1 is killed while it waits, or fails before it gets there."""
    if runtime.process_index == 2:
        time.sleep(600)
    if runtime.process_index == 1:
        if WAY == "barrier":
            time.sleep(1)
            tell()
            raise ValueError("planted")
        threading.Thread(target=kill_soon).start()
    runtime.strategy.barrier()


def main() -> None:
    start: dict[str, Any] = {"start_method": START_METHOD} if START_METHOD else {}
    strategy = DDPStrategy(timeout=timedelta(seconds=LIMIT), **start)
    if WAY.startswith("barrier"):
        Runtime(accelerator="cpu", strategy=strategy, devices=3).launch(stay_in_barrier)
        return
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=3,
        max_epochs=1,
        val_check_interval=10,
        num_sanity_val_steps=0,
        callbacks=[Fails()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Net(),
        DataLoader(TensorDataset(torch.randn(120, 4)), batch_size=2, num_workers=WORKERS),
        DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=2, num_workers=WORKERS),
    )
    print(f"trained {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
