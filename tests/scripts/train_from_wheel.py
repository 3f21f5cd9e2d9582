"""Trains for some steps on two processes, and says which core that was."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import core
from core import Runtime, seed_everything


def main() -> None:
    """Train, then compare the processes' parameters."""
    runtime = Runtime(accelerator="cpu", devices=2)
    seed_everything(1)
    inputs = torch.randn(32, 4)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4)
    model, optimizer, loader = runtime.prepare(model, optimizer, loader)
    for features, targets in loader:
        runtime.backward(torch.nn.functional.mse_loss(model(features), targets))
        optimizer.step()
        optimizer.zero_grad()
    weights = runtime.gather(next(model.parameters()).detach())
    print(f"core lies in {Path(core.__file__).parent}", flush=True)
    runtime.print(f"{runtime.num_processes} processes, the same parameters: {torch.equal(weights[0], weights[1])}")


if __name__ == "__main__":
    main()
