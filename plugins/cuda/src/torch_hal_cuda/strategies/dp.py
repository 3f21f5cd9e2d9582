"""dp: one process splits each batch over its devices."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from torch_hal.strategies import SingleDeviceStrategy
from torch_hal_cuda.strategies.splitting import SplitsBatches

__all__ = ["DataParallelStrategy"]


class DataParallelStrategy(SplitsBatches, SingleDeviceStrategy):
    """One process on one machine: each batch is split over the devices, and replicas run in threads.

    Discouraged: ``ddp`` does the same faster, with one process per device.

    Each device gets its share of the loader's ``batch_size``. In the Trainer, ``training_step`` runs once per part, and
    ``training_step_end``, where it is defined, receives the list of their outputs, on the first device. Otherwise the
    mean of the parts' losses is used, weighted by the parts' sizes. It equals the loss of the whole batch if a part's
    loss is the mean over its items.
    """

    name = "dp"
    instead: ClassVar[str] = "ddp"

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Convert the module and move it to the first device; wrap it if there are several devices."""
        return self.split(super().setup_module(module))
