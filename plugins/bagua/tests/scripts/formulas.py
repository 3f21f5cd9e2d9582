"""One process of a group: trains each case, saves gradients and weights. Arguments: machines, accelerator."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_hal_bagua import BaguaStrategy, QAdamOptimizer

from torch_hal import Runtime

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.cases import CASES, LENGTH, LR, QADAM, STEPS, Case, runs_on

RANK, WORLD_SIZE, NODES = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
ACCELERATOR = sys.argv[2]


class Line(nn.Module):
    """A linear function with one parameter, so that a bucket has one possible layout."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(LENGTH, generator=torch.Generator().manual_seed(seed)))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight


def train(case: Case) -> dict[str, Any]:
    strategy = BaguaStrategy(case.algorithm, **case.options)
    with Runtime(accelerator=ACCELERATOR, devices=WORLD_SIZE // NODES, num_nodes=NODES, strategy=strategy) as runtime:
        own = Line(seed=RANK)  # rank 0's is everybody's start
        qadam = case.algorithm == "qadam"
        optimizer: Any = (
            QAdamOptimizer(own.parameters(), **QADAM) if qadam else torch.optim.SGD(own.parameters(), lr=LR)
        )
        model, optimizer = runtime.prepare(own, optimizer)
        generator = torch.Generator().manual_seed(100 + RANK)
        first = own.weight.detach().clone()
        grads, weights = [], []
        for _ in range(STEPS):
            inputs = torch.randn(16, LENGTH, generator=generator).to(runtime.device)
            targets = torch.randn(16, generator=generator).to(runtime.device)
            at = own.weight.detach().clone().requires_grad_()
            grads.append(torch.autograd.grad(((inputs @ at - targets) ** 2).mean(), at)[0])
            loss = ((model(inputs) - targets) ** 2).mean()
            runtime.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            weights.append(own.weight.detach().clone())
        assert own.weight.device == runtime.device
        assert runtime.device.type == ACCELERATOR
    return {
        "first": first.cpu().numpy(),
        "grads": torch.stack(grads).cpu().numpy(),
        "weights": torch.stack(weights).cpu().numpy(),
    }


def main() -> None:
    arrays = {
        f"{name}/{part}": array
        for name, case in CASES.items()
        if runs_on(name, WORLD_SIZE, NODES)
        for part, array in train(case).items()
    }
    np.savez(f"formulas{RANK}.npz", **arrays)


if __name__ == "__main__":
    main()
