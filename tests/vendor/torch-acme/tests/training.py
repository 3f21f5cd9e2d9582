"""A training run to compare devices with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.03, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
}


def net() -> nn.Module:
    """A small convolutional net with every kind of layer that a device may take apart otherwise."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (3, 4, 4)),
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(32),
        nn.Linear(32, 4),
    )


def losses(device: str, optimizer: str = "SGD", autocast: torch.dtype | None = None, steps: int = 12) -> list[float]:
    """The losses of a run on ``device``; under float16 autocast they are scaled for backward."""
    where = torch.device(device)
    model = net().to(where)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    scaler = torch.amp.GradScaler(where.type, enabled=autocast is torch.float16)
    draw = torch.Generator().manual_seed(1)
    seen = []
    for _ in range(steps):
        inputs = torch.randn(16, 48, generator=draw)
        labels = inputs[:, :4].argmax(1)
        with torch.autocast(where.type, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            loss = nn.functional.cross_entropy(model(inputs.to(where)), labels.to(where))
        stepper.zero_grad()
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(stepper)
        scaler.update()
        seen.append(loss.item())
    assert all(parameter.device == where for parameter in model.parameters())
    return seen
