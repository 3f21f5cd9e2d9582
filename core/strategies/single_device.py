"""One process on one device."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from torch import Tensor

from .base import Strategy
from .reductions import as_result, check_reduction, copy_for_reduction

T = TypeVar("T")


class SingleDeviceStrategy(Strategy):
    """One process on one device: collectives are the identity."""

    name = "single_device"
    max_processes: ClassVar[int | None] = 1

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        """A copy of ``tensor``; see :meth:`Strategy.reduce`."""
        known = check_reduction(reduction, tensor.dtype)
        return as_result(copy_for_reduction(tensor, tensor.device, known), tensor.dtype)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """``tensor`` with a leading dimension of 1."""
        return tensor.unsqueeze(0)

    def broadcast(self, obj: T, src: int = 0) -> T:
        """``obj`` itself."""
        return obj

    def barrier(self, name: str | None = None) -> None:
        """Nothing to wait for."""

    def all_gather_object(self, obj: T) -> list[T]:
        """``obj`` alone."""
        return [obj]
