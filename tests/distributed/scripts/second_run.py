"""Runs one Trainer several times: ``second_run.py STRATEGY PRECISION DEVICES OPTIMIZER HOOK BEFORE``.

``BEFORE`` is ``fails`` for a fit that fails first, whose traceback is kept. No garbage is collected. Each rank writes
whether its parameters are those that a Trainer for each run leads to.
"""

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer

STRATEGY, PRECISION, DEVICES, OPTIMIZER, HOOK, BEFORE = sys.argv[1:]


class Steps(torch.optim.Optimizer):
    """Of a third party: it may call its closure several times."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"])
        return loss


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.fails = False

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.fails and batch_idx == 2:
            raise ValueError("planted")
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", self.layer(batch[0]).square().mean(), sync_dist=True)

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0])

    def configure_optimizers(self) -> Any:
        kind: Any = Steps if OPTIMIZER == "foreign" else torch.optim.SGD
        return kind(self.parameters(), lr=0.1)


class HookedNet(Net):
    def on_before_optimizer_step(self, optimizer: Any) -> None: ...


class Hooked(Callback):
    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None: ...


def trainer() -> Trainer:
    return Trainer(
        accelerator="cpu",
        strategy=STRATEGY,
        devices=int(DEVICES),
        precision=PRECISION,
        max_epochs=1,
        callbacks=[Hooked()] if HOOK == "callback" else [],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def run(trainers: list[Trainer]) -> list[float]:
    """Fit, evaluate and fit again; the parameters."""
    torch.manual_seed(3)
    module = HookedNet() if HOOK == "module" else Net()
    data = torch.randn(16, 4, generator=torch.Generator().manual_seed(4))
    loader = DataLoader(TensorDataset(data), batch_size=2)
    for number, each in enumerate(trainers):
        if number in (0, 4):
            each.fit(module, loader, loader)
        else:
            getattr(each, ("validate", "test", "predict")[number - 1])(module, loader)
    return [float(value) for parameter in module.parameters() for value in parameter.detach().float().flatten()]


def main() -> None:
    gc.disable()
    one, kept = trainer(), None
    if BEFORE == "fails":
        module = HookedNet() if HOOK == "module" else Net()
        module.fails = True
        try:
            one.fit(module, DataLoader(TensorDataset(torch.ones(16, 4)), batch_size=2))
        except ValueError as error:
            kept = error
        assert kept is not None
    is_equal = run([one] * 5) == run([trainer() for _ in range(5)])
    out = Path(os.environ["OUT"], f"said.{os.environ.get('RANK', 0)}.json")
    out.write_text(json.dumps([is_equal, kept is not None, one.global_step]))


if __name__ == "__main__":
    main()
