"""A small fit with dropout and shuffled data, whose result depends on every step."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torch_hal import Module


class Problem(Module):
    """Regression; the process of rank 1 may be killed, or its node, once."""

    def __init__(self, failure: str = "", folder: str = "") -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
        self.failure, self.folder = failure, folder

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss."""
        del batch_idx
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        self.fail()
        return loss

    def fail(self) -> None:
        """At step 9 of rank 1, the first time."""
        if self.failure and self.global_rank == 1 and self.global_step == 9:
            done = Path(self.folder, self.failure)
            if not done.exists():
                done.touch()
                if self.failure == "node":  # which takes its workers along; by itself, Ray takes some seconds for that
                    os.kill(int(os.environ["RAY_RAYLET_PID"]), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, which has state."""
        return torch.optim.Adam(self.parameters(), lr=0.05)


def loader() -> DataLoader[Any]:
    """64 samples, shuffled: 8 steps an epoch on two processes."""
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(3))
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)


def arguments(**others: Any) -> dict[str, Any]:
    """Arguments of the Trainer."""
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return {"accelerator": "cpu", "strategy": "ddp", "max_epochs": 3, **quiet, **others}


def weights(module: nn.Module) -> list[float]:
    """All parameters."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).tolist()
