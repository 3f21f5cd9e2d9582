"""The hooks on a batch's way to the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import ConfigurationError, quoted
from ...strategies.base import Strategy
from .datamodule import DataHooks
from .hooks import overridden

__all__ = ["BatchHooks", "check_batch_hooks"]

logger = logging.getLogger(__name__)

NAMES = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""In the order in which they are called."""


def _overrides(owner: DataHooks | None) -> dict[str, Callable[..., Any]]:
    found = {name: overridden(owner, DataHooks, name) for name in NAMES}
    return {name: hook for name, hook in found.items() if hook is not None}


def check_batch_hooks(strategy: Strategy, *owners: DataHooks | None) -> None:
    """Check that the strategy leaves batches to the hooks that ``owners`` override.

    Raises:
        ConfigurationError: It moves batches itself, and a hook changes them. One that only moves them is not called,
            which a warning says.
    """
    if not strategy.moves_batches:
        return
    for owner in owners:
        overrides = _overrides(owner)
        if overrides.pop(NAMES[1], None) is not None:
            logger.warning(
                "%s: %s is not called: strategy=%r moves batches to the device itself",
                type(owner).__name__,
                NAMES[1],
                strategy.name,
            )
        if names := list(overrides):
            raise ConfigurationError(
                f"{type(owner).__name__}: overrides {quoted(names)}, but strategy={strategy.name!r} moves batches to "
                "the device itself. Change the batch in the DataLoader's collate_fn, or in the step."
            )


class BatchHooks:
    """The overridden hooks of one run. What is not overridden costs nothing.

    Args:
        strategy: Of the run.
        datamodule: Its overrides replace the Module's.
        module: The Module.
    """

    def __init__(self, strategy: Strategy, datamodule: DataHooks | None, module: DataHooks) -> None:
        self._strategy, self._module = strategy, module
        self._overridden = {} if strategy.moves_batches else {**_overrides(module), **_overrides(datamodule)}
        self.moves = any(name in self._overridden for name in NAMES[:2])
        """Whether batches are moved here, so that loaders must leave them where they are."""

    def move(self, batch: Any, dataloader_idx: int) -> Any:
        """``batch`` on this process's device."""
        move: Callable[..., Any] = self._overridden.get(NAMES[1], self._module.transfer_batch_to_device)
        return move(batch, self._strategy.root_device, dataloader_idx)

    def applied(self, batches: Iterator[Any], dataloader_idx: int = 0) -> Iterator[Any]:
        """``batches``, each after the overridden hooks, which are called when it is taken."""
        if not self._overridden:
            return batches
        before, after = (self._overridden.get(name) for name in (NAMES[0], NAMES[2]))

        def apply(batch: Any) -> Any:
            if before is not None:
                batch = before(batch, dataloader_idx)
            if self.moves:
                batch = self.move(batch, dataloader_idx)
            return batch if after is None else after(batch, dataloader_idx)

        return map(apply, batches)
