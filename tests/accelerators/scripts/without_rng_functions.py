"""Trains two epochs with checkpoints on a device whose torch module has no functions for its generator; resumes."""

from __future__ import annotations

import logging
import sys
from typing import Any

import simx  # noqa: F401
import torch
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core.plan import Request, resolve

module = type(torch.get_device_module("simx"))
del module.get_rng_state, module.set_rng_state
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(name)s %(message)s")


class Model(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = ((self.layer(batch[0]) - batch[1]) ** 2).mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(epochs: int, **arguments: Any) -> torch.Tensor:
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(12, 3), torch.randn(12, 1)), batch_size=4)
    model = Model()
    trainer = Trainer(max_epochs=epochs, devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, data, **arguments)
    assert trainer.plan.inexact_resume == "torch.simx.get_rng_state does not exist"
    if not arguments:
        trainer.save_checkpoint(f"after-{epochs}")
    return model.layer.weight.detach().cpu()


whole = fit(2)
fit(1)
assert torch.equal(fit(2, ckpt_path="after-1"), whole)  # this module draws no numbers on the device
print("explained:", "not exact" in str(resolve(Request.read(devices=1))))
print("on the host:", resolve(Request.read(accelerator="cpu")).inexact_resume == "")
