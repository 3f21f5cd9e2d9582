"""``two_hosts.py BATCHES ddp|fsdp``: rank 0 prints the weights at the end."""

import importlib
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core.strategies import DDPStrategy

BATCHES = int(sys.argv[1])
LIMIT = timedelta(seconds=15)


class Line(Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(3, 1, dtype=torch.float64)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if batch_idx == 3:
            print(f"rank {self.global_rank} trains", flush=True)
        if BATCHES > 100:
            time.sleep(0.05)
        loss: Tensor = (self.net(batch[0]) ** 2).mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.1)

    def on_train_epoch_end(self) -> None:
        whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in self.net.parameters()]
        weights = torch.cat([each.detach().flatten() for each in whole])
        self.print(f"weights {weights.tolist()} of {self.trainer.world_size}")


if __name__ == "__main__":
    data = TensorDataset(torch.linspace(-1, 1, 3 * 2 * BATCHES, dtype=torch.float64).reshape(-1, 3))
    is_ddp = sys.argv[2] == "ddp"
    kind = DDPStrategy if is_ddp else importlib.import_module("torch_hal_fsdp").FSDPStrategy
    trainer = Trainer(
        accelerator="cpu",
        strategy=kind(timeout=LIMIT),
        precision="64-true",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(), DataLoader(data, batch_size=1, num_workers=2))
