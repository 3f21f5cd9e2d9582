"""An unchanged training script: data that does not divide, checkpoints within epochs; with ``die`` rank 1 dies once.

With ``slowly`` each process writes down the samples that it sees, and the first machine does not begin alone.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer, seed_everything
from core.callbacks import Callback, ModelCheckpoint
from core.checkpoints import latest

OUT = Path(os.environ["OUT"])


class Regression(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.2), nn.Linear(16, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        if "slowly" in sys.argv:
            time.sleep(0.2)
            with open(OUT / f"seen.{os.getpid()}", "a") as file:
                samples = ",".join(map(repr, inputs[:, 0].tolist()))
                file.write(f"{self.trainer.current_epoch} {os.environ['WORLD_SIZE']} {batch_idx} {samples}\n")
        noise = torch.rand_like(inputs) / 100 + random.random() / 100
        return nn.functional.mse_loss(self.model(inputs + noise), targets)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class Die(Callback):
    def on_train_batch_start(self, trainer: Trainer, module: Module, batch: Any, batch_idx: int) -> None:
        is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if is_first and os.environ["RANK"] == "1" and (trainer.current_epoch, batch_idx) == (1, 4):
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    seed_everything(int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
    module = Regression()
    checkpoints = OUT / "checkpoints"
    trainer = Trainer(
        max_epochs=3,
        callbacks=[
            ModelCheckpoint(checkpoints, every_n_train_steps=3, save_top_k=-1),
            *([Die()] * ("die" in sys.argv)),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    if "slowly" in sys.argv and os.environ["WORLD_SIZE"] == "1" and latest(checkpoints) is None:
        signal.pause()  # until the second machine joins, however late: then this process is started again
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(77, 5, generator=generator)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))
    trainer.fit(module, loader, ckpt_path=None if latest(checkpoints) is None else "last")
    assert trainer.current_epoch == 3
    rank = trainer.runtime.process_index
    torch.save(module.model.state_dict(), OUT / f"rank{rank}.pt")
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
    # In one piece: processes are started with -u, and print would write the end of the line by itself.
    print(f"rank {rank} has {trainer.runtime.num_processes} peers, restart {restart}\n", end="")


if __name__ == "__main__":
    main()
