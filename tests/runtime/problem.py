"""The small problem that the tests of the Runtime solve."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from core import Runtime

PRECISIONS = ["64-true", "32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed"]


def runtime(**arguments: Any) -> Runtime:
    """A Runtime on one process of the CPU."""
    return Runtime(accelerator="cpu", devices=1, **arguments)


def network() -> nn.Sequential:
    """The same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def batch() -> tuple[Tensor, Tensor]:
    """The same each time."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 4, generator=generator), torch.randn(16, 2, generator=generator)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, targets.to(outputs.dtype))
