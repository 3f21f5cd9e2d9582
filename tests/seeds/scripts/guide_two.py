"""A fit and a test on two processes, with the hooks and the hand-made reduction of the GPU guide."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer

OUT, STRATEGY, DEVICES = Path(os.environ["OUT"]), sys.argv[1], int(sys.argv[2])


class LitModel(Module):
    """Notes what its hooks get."""

    sigma: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.register_buffer("sigma", torch.eye(3))
        self.said: dict[str, Any] = {"batches": [], "parts": [], "devices": []}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.said["batches"].append(batch[0].flatten().tolist())
        self.said["devices"] = [str(self.device), str(self.sigma.device), str(torch.zeros(2).type_as(batch[0]).device)]
        return self.layer(batch[0])

    def training_step_end(self, step_output: Any) -> Any:
        self.said["parts"].append([*step_output.shape])
        return torch.softmax(step_output, dim=1).mean()

    def training_epoch_end(self, outputs: Any) -> None:
        self.said["training"] = [[*each.shape] for each in outputs], any(each.requires_grad for each in outputs)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("validation_loss", batch[0].mean(), on_step=True, on_epoch=True, sync_dist=True)
        return batch[0]

    def validation_step_end(self, step_output: Any) -> Any:
        return step_output.sum()

    def validation_epoch_end(self, outputs: Any) -> None:
        self.said["validation"] = [[each.item() for each in of_loader] for of_loader in outputs]

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return batch[0]

    def test_step_end(self, step_output: Any) -> Any:
        return step_output * 2

    def test_epoch_end(self, outputs: Any) -> None:
        mean = torch.mean(torch.stack(self.all_gather(outputs)))
        if self.trainer.is_global_zero:
            self.log("my_reduced_metric", mean, rank_zero_only=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(items: int = 8) -> DataLoader[Any]:
    """Numbers from 0, two in each batch."""
    return DataLoader(TensorDataset(torch.arange(float(items)).reshape(-1, 1)), batch_size=2)


trainer = Trainer(
    accelerator="cpu",
    devices=DEVICES,
    strategy=STRATEGY,
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    num_sanity_val_steps=0,
)
module = LitModel()
trainer.fit(module, loader(), [loader(), loader(4)])
module.said["tested"] = trainer.test(module, loader(), verbose=False)
module.said["variables"] = sorted({"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_RANK"} & {*os.environ})
(OUT / f"rank{trainer.global_rank}.json").write_text(json.dumps(module.said))
