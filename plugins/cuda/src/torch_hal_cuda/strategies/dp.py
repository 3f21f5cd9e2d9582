"""dp: one process splits each batch over its devices."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from core.strategies import SingleDeviceStrategy
from torch_hal_cuda.strategies.splitting import SplitsBatches

__all__ = ["DataParallelStrategy"]


class DataParallelStrategy(SplitsBatches, SingleDeviceStrategy):
    """One process on one machine: each batch is split over the devices, replicas run in threads.

    Discouraged: ``ddp`` does the same faster, with a process for each device.

    The loader's batches are whole: each device gets its share of ``batch_size``. In the Trainer, ``training_step`` runs
    once for each part, and ``training_step_end`` gets the joined outputs; a loss that is then a vector of the parts'
    losses is trained on as their mean, weighted by the parts' sizes. That is the loss of the whole batch where a part's
    loss is a mean over its items.
    """

    name = "dp"
    instead: ClassVar[str] = "ddp"

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Converted, moved to the first device, and made to split its batches; unchanged on one device."""
        return self.split(super().setup_module(module))
