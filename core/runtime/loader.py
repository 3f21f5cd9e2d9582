"""A data loader that yields this process's share, on this process's device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from core.errors import WrongTypeError
from core.nested import map_tensors
from core.runtime.sharding import shard_loader
from core.strategies.base import Strategy

__all__ = ["PreparedLoader", "loader_parts", "prepare_loader", "set_epoch"]

HOST = torch.device("cpu")


def prepare_loader(loader: Any, strategy: Strategy, evaluation: bool = False) -> Any:
    """The user's own loader where nothing needs doing, else a :class:`PreparedLoader`.

    Args:
        loader: The user's own; it is left as it was. A DataLoader, or on one process any iterable of batches.
        strategy: Says which share is this process's.
        evaluation: As in :func:`core.runtime.sharding.shard_loader`.

    Raises:
        WrongTypeError: It cannot be shared out.
        ConfigurationError: It is shared out already, among other processes than these.
    """
    epochs: Any = None
    sharded = loader
    if strategy.data_shards > 1:
        if not isinstance(loader, DataLoader):
            raise WrongTypeError(
                f"dataloaders: given {type(loader).__name__}. Valid: a torch DataLoader, which alone can be shared out "
                f"among {strategy.data_shards} processes."
            )
        sharded, epochs = shard_loader(loader, strategy.data_shards, strategy.data_shard, evaluation)
    # Batches come from the host: where that is where the work is done, there is nothing to move.
    device = None if strategy.root_device.type == HOST.type else strategy.root_device
    return loader if sharded is loader and device is None else PreparedLoader(sharded, epochs, device)


class PreparedLoader:
    """This process's share of a loader's batches, each moved to ``device``.

    Each pass is a new epoch to the sampler, so that a shuffling one draws a new order, the same in each process.

    Args:
        loader: Whose batches.
        epochs: What has ``set_epoch``, or ``None``.
        device: Where batches go; ``None`` leaves them.
    """

    def __init__(self, loader: Any, epochs: Any, device: torch.device | None) -> None:
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


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell each part of ``loader`` that orders its items by epoch which one comes next."""
    for part in loader_parts(loader):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def loader_parts(loader: Any) -> list[Any]:
    """``loader``, its data set and samplers, and those that they in turn draw from."""
    parts = [loader]
    for part in parts:
        found = (getattr(part, name, None) for name in ("dataset", "batch_sampler", "sampler"))
        parts += [inner for inner in found if inner is not None and not any(inner is known for known in parts)]
    return parts
