"""A peer by itself: ``alone.py OUT``. It trains in one run, and in two of which the second one resumes the first."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torch_hal import Runtime

STEPS = 4


class Net(nn.Module):
    """Its middle layer is frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.frozen, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.frozen.requires_grad_(False)

    def loss(self, step: int) -> torch.Tensor:
        """Of a batch that is different in each step."""
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        loss: torch.Tensor = self.last(torch.tanh(self.frozen(self.first(inputs)))).square().mean()
        return loss


def plain() -> list[float]:
    """The losses and weights of torch's own loop."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = net.loss(step)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses + weights(net)


def run(start: int, end: int, saved: dict[str, Any]) -> list[float]:
    """Losses and weights of the steps from ``start`` to ``end``, and their state in ``saved``."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    runtime = Runtime(accelerator="cpu", strategy="hivemind")
    _, prepared = runtime.prepare(net, optimizer)
    if saved:
        net.load_state_dict(saved["net"])
        runtime.strategy.load_optimizer_state(optimizer, saved["optimizer"])
    losses = []
    for step in range(start, end):
        prepared.zero_grad()
        loss = net.loss(step)
        runtime.backward(loss)
        prepared.step()
        assert runtime.strategy.global_steps() == step + 1
        losses.append(loss.item())
    saved |= {"net": net.state_dict(), "optimizer": runtime.strategy.optimizer_state(optimizer)}
    runtime.teardown()
    return losses + weights(net)


def weights(net: nn.Module) -> list[float]:
    """All of them."""
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).tolist()


def main() -> None:
    """Train, and say what happened."""
    sharing = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    saved: dict[str, Any] = {}
    said = {"plain": plain(), "whole": run(0, STEPS, {}), "first": run(0, STEPS // 2, saved)}
    said["rest"] = run(STEPS // 2, STEPS, saved)
    changed = torch.multiprocessing.get_sharing_strategy() != sharing  # type: ignore[no-untyped-call]
    Path(sys.argv[1]).write_text(json.dumps({**said, "changed": changed}))


if __name__ == "__main__":
    main()
