"""One process on one device."""

from __future__ import annotations

from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from core.strategies.base import Strategy

__all__ = ["SingleDeviceStrategy"]

T = TypeVar("T")


class SingleDeviceStrategy(Strategy):
    """One process on one device: collectives are the identity."""

    name = "single_device"
    max_processes: ClassVar[int | None] = 1

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        """A copy of ``tensor``; as a mean of whole numbers a float32 tensor, as that of several processes is."""
        self.check_reduction(reduction)
        is_whole = not (tensor.is_floating_point() or tensor.is_complex())
        return tensor.to(torch.float32 if reduction == "mean" and is_whole else tensor.dtype, copy=True)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """``tensor`` with a leading dimension of 1."""
        return tensor.unsqueeze(0)

    def broadcast(self, obj: T, src: int = 0) -> T:
        """``obj`` itself."""
        del src
        return obj

    def barrier(self, name: str | None = None) -> None:
        """Nothing to wait for."""

    def all_gather_object(self, obj: T) -> list[T]:
        """``obj`` alone."""
        return [obj]
