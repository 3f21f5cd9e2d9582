"""ddp2: dp inside a machine, DistributedDataParallel across machines."""

from __future__ import annotations

from typing import ClassVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from core.strategies import DDPStrategy
from torch_hal_cuda.strategies.splitting import SplitsBatches

__all__ = ["DDP2Strategy"]


class DDP2Strategy(SplitsBatches, DDPStrategy):
    """One process on each machine, which splits its batches over the machine's devices; gradients meet in between.

    Discouraged: ``ddp`` does the same faster, with a process for each device.

    Each machine takes its share of the data, as one process of ``ddp`` would; within it, all is as under
    :class:`torch_hal_cuda.strategies.DataParallelStrategy`.
    """

    name = "ddp2"
    instead: ClassVar[str] = "ddp"

    def configure_ddp(self) -> None:
        """Split batches over this machine's devices, and reduce gradients over machines."""
        self.model = self.split(self.model)
        super().configure_ddp()

    def ddp_device_ids(self) -> list[int] | None:
        """None: the module within moves its own inputs."""
        return None

    def splitting(self, module: nn.Module) -> nn.Module:
        """What is within DistributedDataParallel."""
        inner: nn.Module = module.module if isinstance(module, DistributedDataParallel) else module
        return inner
