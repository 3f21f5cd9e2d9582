"""A replica: ``replica.py OUT NAME LIGHTHOUSE STEPS [KILLED_AT]``. What it saw is in ``OUT/said-NAME``."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_torchft import TorchFTStrategy

from core import Callback, Module, Trainer
from core.callbacks import ModelCheckpoint

OUT, NAME, LIGHTHOUSE, STEPS = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
KILLED_AT = int(sys.argv[5]) if len(sys.argv) > 5 else -1
WEIGHTS = torch.tensor([[1.0, -2.0, 3.0, 0.5]])


def batches() -> DataLoader[Any]:
    """This replica's own data, all of one linear function."""
    inputs = torch.randn(8 * 2000, 4, generator=torch.Generator().manual_seed(ord(NAME[0])))
    return DataLoader(TensorDataset(inputs, inputs @ WEIGHTS.T), batch_size=8)


class Linear(Module):
    """Each replica begins with other weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(ord(NAME[0]))
        self.net = nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.5)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Notes(Callback):
    """After each call of the optimizer."""

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}
        self.calls = 0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        (OUT / f"ready-{NAME}").touch()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        self.calls += 1
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.seen[step] = {"rate": rate, "weights": module.net.weight.flatten().tolist()}
        (OUT / f"new-{NAME}").write_text(str(step))
        (OUT / f"new-{NAME}").rename(OUT / f"at-{NAME}")
        if step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        while step >= 30 and not (OUT / "ready-b2").exists():  # so that it has steps together with the restarted one
            time.sleep(0.05)
        time.sleep(0.05)  # as a real model would take


notes = Notes()
strategy = TorchFTStrategy(
    lighthouse=LIGHTHOUSE, replica_id=f"replica_{ord(NAME[0]) - ord('a')}", timeout=20.0, quorum_timeout=60.0
)
saving = ModelCheckpoint(str(OUT / f"saved-{NAME}"), every_n_train_steps=10, save_top_k=-1, filename="{step}")
quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
trainer = Trainer(
    accelerator="cpu", strategy=strategy, max_steps=STEPS, max_epochs=-1, callbacks=[notes, saving], **quiet
)
module = Linear()
trainer.fit(module, batches())
said = {"steps": trainer.global_step, "calls": notes.calls, "seen": notes.seen}
(OUT / f"said-{NAME}").write_text(json.dumps(said))
