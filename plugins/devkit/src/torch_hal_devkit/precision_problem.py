"""Modules to test a precision: with buffers, with nested inputs and outputs, and with known gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["EXACT", "Known", "Outputs", "Probe", "TwoGroups", "exactness"]

EXACT = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""By dtype: the relative error of a few operations."""


def exactness(precision: Any) -> float:
    """The relative error that a few operations may have in a precision."""
    return EXACT[max((precision.compute_dtype, precision.param_dtype), key=EXACT.__getitem__)]


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


class Outputs(nn.Module):
    """Nested inputs and outputs; each output depends on its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(8)
            self.first, self.second, self.third = (nn.Linear(4, 1) for _ in range(3))
        self.given: list[torch.dtype] = []
        """Dtypes of the floating point inputs."""
        self.others: list[Any] = []
        """The other inputs; of tensors, the dtype."""

    def forward(self, inputs: list[Any], *, more: dict[str, Tensor]) -> dict[str, Any]:
        """Outputs of each layer."""
        first, (second, *others) = inputs
        floating = [first, second, *(value for value in more.values() if value.is_floating_point())]
        self.given += [value.dtype for value in floating]
        self.others += [*others, *(value.dtype for value in more.values() if not value.is_floating_point())]
        return {"first": self.first(first), "pair": (self.second(second), [self.third(first)])}


class TwoGroups(nn.Module):
    """Two weights with gradients that are known: a constant for each element."""

    GRADIENTS = {"first": 0.5, "second": -0.25}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
        self.second = nn.Parameter(torch.tensor([0.25, 4.0, -1.0]))

    def gradient(self, name: str) -> Tensor:
        """The gradient of a weight in float64."""
        return torch.full((3,), self.GRADIENTS[name], dtype=torch.float64)

    def forward(self, ones: Tensor, first: float | None = 1.0, second: float | None = 1.0) -> Tensor:
        """One number; the factors scale the gradients, ``None`` leaves the weight out."""
        parts = [(self.first, first, "first"), (self.second, second, "second")]
        used = [(weight * ones * self.GRADIENTS[n]).sum() * factor for weight, factor, n in parts if factor is not None]
        return torch.stack(used).sum()
