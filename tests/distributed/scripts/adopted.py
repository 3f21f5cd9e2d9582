"""Runs inside of a process group that the program around them has made."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from core import Module, Runtime, Trainer
from core.errors import ConfigurationError
from core.strategies import DDPStrategy

OUT = Path(os.environ["OUT"])


class Regression(Module):
    """A linear model, fitted to a line."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        del batch_idx
        inputs, targets = batch
        return nn.functional.mse_loss(self.layer(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def refusal(**arguments: Any) -> str:
    try:
        with Runtime(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), **arguments) as runtime:
            runtime.wait_for_everyone()
            return "ran"
    except ConfigurationError as error:
        return str(error)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    said: dict[str, Any] = {}
    with Runtime(strategy="ddp", accelerator="cpu", devices=world_size) as runtime:
        said["gathered"] = runtime.gather(torch.tensor([float(rank)])).tolist()
        model: Any = runtime.prepare(nn.Linear(2, 1))
        runtime.backward(model(torch.full((1, 2), rank + 1.0)).sum())
        said["gradient"] = model.weight.grad.flatten().tolist()
    said["afterwards"] = dist.is_initialized()

    torch.manual_seed(0)
    inputs = torch.arange(7.0)[:, None] / 7
    data = torch.utils.data.TensorDataset(inputs, 2 * inputs + 1)
    module = Regression()
    options: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=world_size, max_epochs=2, **options)
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=1))
    said["weights"] = [parameter.detach().flatten().tolist() for parameter in module.parameters()]

    said["timeout"] = refusal(strategy=DDPStrategy(timeout=timedelta(seconds=5)))
    said["backend"] = refusal(strategy=DDPStrategy(process_group_backend="fake"))
    alone = dist.new_group([0])
    total = torch.ones(1)
    dist.all_reduce(total)
    said["total"] = total.item()
    del alone
    (OUT / f"said{rank}.json").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


main()
