"""A data loader that yields this process's share, on this process's device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from core.nested import map_tensors
from core.runtime.sharding import shard_loader
from core.strategies.base import Strategy

__all__ = ["PreparedLoader", "prepare_loader"]

HOST = torch.device("cpu")


def prepare_loader(loader: DataLoader[Any], strategy: Strategy, evaluation: bool = False) -> Any:
    """The user's own loader where nothing needs doing, else a :class:`PreparedLoader`.

    Args:
        loader: The user's own; it is left as it was.
        strategy: Says which share is this process's.
        evaluation: As in :func:`core.runtime.sharding.shard_loader`.
    """
    epochs: Any = None
    sharded = loader
    if strategy.data_shards > 1:
        sharded, epochs = shard_loader(loader, strategy.data_shards, strategy.data_shard, evaluation)
    # Batches come from the host: where that is where the work is done, there is nothing to move.
    device = None if strategy.root_device.type == HOST.type else strategy.root_device
    if epochs is None and device is None and sharded is loader:
        return loader
    return PreparedLoader(sharded, epochs, device)


class PreparedLoader:
    """This process's share of a loader's batches, each moved to ``device``.

    Each pass is a new epoch to the sampler, so that a shuffling one draws a new order, the same in each process.

    Args:
        loader: Whose batches.
        epochs: What has ``set_epoch``, or ``None``.
        device: Where batches go; ``None`` leaves them.
    """

    def __init__(self, loader: DataLoader[Any], epochs: Any, device: torch.device | None) -> None:
        self.loader = loader
        self.epoch = 0
        self._epochs = epochs
        self._device = device

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass number ``epoch``."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        if self._epochs is not None:
            self._epochs.set_epoch(self.epoch)
        self.epoch += 1
        return iter(self.loader) if self._device is None else self._moved(self._device)

    def _moved(self, device: torch.device) -> Iterator[Any]:
        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        for batch in self.loader:
            yield map_tensors(move, batch)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)
