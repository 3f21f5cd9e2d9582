"""The states of the random number generators in checkpoints of Lightning's Trainer, which hold none."""

from __future__ import annotations

import logging
import os
from typing import Any

from torch_hal.random import get_rng_state, set_rng_state
from torch_hal.strategies import Strategy
from torch_hal_lightning.planning import Planned

__all__ = ["RandomStates"]

logger = logging.getLogger(__name__)

KEY = "torch_hal_random_states"
"""Of a checkpoint: for each process, the states of the host's generators and of its device's."""


class RandomStates:
    """For a strategy of Lightning's Trainer: saves them, and restores them where the number of processes is the same.

    Not a callback: Lightning calls all hooks of each, in every step.
    """

    planned: Planned
    _loaded: dict[str, Any] | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """With the states, unless the checkpoint has weights only. Every process calls this."""
        if "optimizer_states" in checkpoint:
            core = self.planned.strategy
            checkpoint = {**checkpoint, KEY: core.all_gather_object(get_rng_state(core.accelerator, core.root_device))}
        self.write_checkpoint(checkpoint, filepath, storage_options)

    def write_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike[str], storage_options: Any
    ) -> None:
        """As Lightning's strategy does it."""
        super().save_checkpoint(checkpoint, filepath, storage_options)  # type: ignore[misc]

    def load_checkpoint(self, checkpoint_path: str | os.PathLike[str], weights_only: bool | None = None) -> Any:
        """And note the states, if a fit resumes."""
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only)  # type: ignore[misc]
        states = checkpoint.get(KEY)
        module: Any = getattr(self, "lightning_module", None)
        if states is None or module is None or module.trainer.state.fn.value != "fit":
            return checkpoint
        core = self.planned.strategy
        if len(states) != core.world_size:
            logger.warning(
                "random number generators are not restored: the checkpoint has those of %s process(es), and this run "
                "has %s",
                len(states),
                core.world_size,
            )
        else:
            self._loaded = states[core.global_rank]
        return checkpoint

    def process_dataloader(self, dataloader: object) -> object:
        """Restore the noted states: Lightning calls this last before it iterates over a loader, which draws numbers."""
        core: Strategy = self.planned.strategy
        if self._loaded is not None:
            set_rng_state(self._loaded, core.accelerator, core.root_device)
        loader: object = super().process_dataloader(dataloader)  # type: ignore[misc]
        return loader

    def on_train_start(self) -> None:
        """From here on the run draws its own numbers."""
        self._loaded = None
        super().on_train_start()  # type: ignore[misc]
