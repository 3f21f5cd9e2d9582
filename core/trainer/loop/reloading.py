"""Loaders that are created again during a fit."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigurationError
from ..run_context import RunContext
from .data_sources import DataSource

__all__ = ["KINDS", "Reloading", "check_reloading"]

KINDS = ("train", "val")


class Reloading:
    """Says when ``reload_dataloaders_every_n_epochs`` is due, and creates the loaders. Every process asks it alike.

    Args:
        run: The run.
        source: Where its loaders come from.
    """

    def __init__(self, run: RunContext, source: DataSource) -> None:
        self._run, self._source = run, source
        self._every = run.settings.reload_dataloaders_every_n_epochs
        self._loaded = dict.fromkeys(KINDS, 0)
        """For each kind, the epoch in which its loader was created."""

    def is_due(self, kind: str) -> bool:
        """Whether the loader of ``kind`` is to be created again before it is read in the running epoch."""
        epoch, every = self._run.progress.epoch, self._every
        return bool(every) and self._source.creates(kind) and epoch // every > self._loaded[kind] // every

    def begins_with(self, epoch: int) -> bool:
        """Whether loaders are created again at the start of ``epoch``."""
        return bool(self._every) and epoch % self._every == 0

    def load(self, kind: str) -> Any:
        """A new loader of ``kind``.

        Raises:
            WrongTypeError: What the method returned is not a loader.
            ConfigurationError: It returned ``None`` this time.
        """
        self._loaded[kind] = epoch = self._run.progress.epoch
        loader = self._source.loader(kind)
        if loader is None:
            raise ConfigurationError(
                f"{kind}_dataloader: returned a loader at first, and None in epoch {epoch}. Return a loader each time; "
                "to leave out validation, set trainer.limit_val_batches = 0."
            )
        return loader


def check_reloading(every: int, source: DataSource) -> None:
    """Refuse ``reload_dataloaders_every_n_epochs`` where there is nothing to call again.

    Raises:
        ConfigurationError: All loaders were passed to ``fit``.
    """
    if every and not any(source.creates(kind) for kind in KINDS):
        raise ConfigurationError(
            f"reload_dataloaders_every_n_epochs={every}: loaders that are passed to fit cannot be created again. "
            "Define train_dataloader or val_dataloader in a core.DataModule or in the module, and do not pass loaders."
        )
