"""Train, and print the calls of Intel's library that mark steps, and other events.

Arguments: front end, accumulate.
"""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import stand_ins
import torch
from torch import nn

from torch_hal import Runtime, Trainer

sys.path.insert(0, str(Path(__file__).parents[4] / "tests" / "helpers"))
from device_problem import OPTIONS, Classifier, loader, net


def noted(what: str) -> None:
    """Note what happens among the recorded calls."""
    stand_ins.calls.append(what)


def noting_sgd(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer whose steps are noted."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: noted("step"))
    return optimizer


class Noting(Classifier):
    """Notes each forward and backward pass."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Note it, and the backward pass that follows."""
        noted("forward")
        loss = super().training_step(batch, batch_idx)
        loss.register_hook(lambda _: noted("backward"))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Note it."""
        noted("validation")
        super().validation_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer that notes its steps."""
        return noting_sgd(self.parameters())


def trained_by_trainer(accumulate: int) -> None:
    """Four batches, and a validation of two."""
    options = {**OPTIONS, "max_epochs": 1, "limit_train_batches": 4, "limit_val_batches": 2}
    trainer = Trainer(accelerator="hpu", devices=1, accumulate_grad_batches=accumulate, **options)
    trainer.fit(Noting(), loader(), loader())


def trained_by_runtime(accumulate: int) -> None:
    """Four batches."""
    with Runtime(accelerator="hpu", devices=1) as runtime:
        module = net()
        module, optimizer, batches = runtime.prepare(module, noting_sgd(module.parameters()), loader())
        for number, (inputs, labels) in enumerate(batches):
            if number == 4:
                break
            noted("forward")
            loss = nn.functional.cross_entropy(module(inputs), labels)
            loss.register_hook(lambda _: noted("backward"))
            runtime.backward(loss)
            if (number + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    {"trainer": trained_by_trainer, "runtime": trained_by_runtime}[sys.argv[1]](int(sys.argv[2]))
    kept = ("forward", "backward", "step", "validation", "mark_step")
    print(*(call for call in stand_ins.calls if call in kept))
