"""A loop with Accelerate's own ``Accelerator`` that saves on its way; with the argument ``here``, Runtime goes on."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from problem import OUT
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_hal import Runtime

EPOCHS, SAVED = 4, 1


class Epochs:
    """Counts them."""

    value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def run(front_end: Any, load: str | None = None) -> list[float]:
    """Two models with tied weights and dropout, an optimizer and a scheduler; saves after the second epoch."""
    set_seed(3)
    first = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 6))
    first[3].weight = first[0].weight
    second = nn.Linear(6, 1)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    inputs = torch.randn(22, 6, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)
    first, second, optimizer, scheduler, loader = front_end.prepare(first, second, optimizer, scheduler, loader)
    epochs = Epochs()
    front_end.register_for_checkpointing(epochs)
    if load is not None:
        front_end.load_state(OUT / load)
    losses = []
    for epoch in range(epochs.value, EPOCHS):
        for batch, targets in loader:
            with front_end.accumulate(first, second):
                loss = nn.functional.mse_loss(second(first(batch)), targets)
                front_end.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        epochs.value = epoch + 1
        if load is None and epoch == SAVED:
            for name, safe in (("safe", True), ("bin", False)):
                front_end.save_state(OUT / name, safe_serialization=safe)
    return losses


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1] == "here":
        said = {name: run(Runtime(cpu=True), name) for name in ("safe", "bin")}
    else:
        said = {"whole": run(Accelerator(cpu=True))}
    (OUT / "said.json").write_text(json.dumps(said))
