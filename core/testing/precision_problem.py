"""Modules to test a precision: one with buffers and nested outputs, and one whose gradients are known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Known", "Probe"]


class Probe(nn.Module):
    """A linear layer, floating point and integer buffers, and nested outputs."""

    scale: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            self.linear = nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor([0.5, 1.0, 2.0]))
        self.register_buffer("seen", torch.tensor(0))
        self.computed: list[torch.dtype] = []
        """Dtypes of the linear layer's outputs."""
        self.given: list[Any] = []
        """Dtypes of the inputs."""

    def forward(self, batch: dict[str, Tensor], fail: bool = False) -> dict[str, Any]:
        """Return floating point, integer and nested outputs, or raise an exception."""
        self.given.append({name: value.dtype for name, value in batch.items()})
        product = self.linear(batch["inputs"])
        self.computed.append(product.dtype)
        if fail:
            raise ZeroDivisionError("planted by the conformance kit")
        return {"product": product, "nested": [product * self.scale], "labels": batch["labels"], "text": "kept"}


class Known(nn.Module):
    """Three weights; the gradient of the sum of its outputs is its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))

    def forward(self, inputs: Tensor) -> Tensor:
        """One number."""
        return (self.weight * inputs).sum()
