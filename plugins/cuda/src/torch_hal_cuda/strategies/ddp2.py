"""ddp2: dp inside a machine, DistributedDataParallel across machines."""

from __future__ import annotations

from typing import ClassVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_hal.strategies import DDPStrategy
from torch_hal_cuda.strategies.splitting import SplitsBatches

__all__ = ["DDP2Strategy"]


class DDP2Strategy(SplitsBatches, DDPStrategy):
    """One process on each machine splits its batches over the machine's devices; DDP averages gradients over machines.

    Discouraged: ``ddp`` does the same faster, with one process per device.

    Each machine takes its share of the data, like one process of ``ddp``; within a machine it works like
    :class:`torch_hal_cuda.strategies.DataParallelStrategy`.
    """

    name = "ddp2"
    instead: ClassVar[str] = "ddp"

    def configure_ddp(self) -> None:
        """Split batches over this machine's devices, and average gradients over machines."""
        self.model = self.split(self.model)
        super().configure_ddp()

    def ddp_device_ids(self) -> list[int] | None:
        """Return ``None``: the wrapped module moves its own inputs."""
        return None

    def splitting(self, module: nn.Module) -> nn.Module:
        """Return the module within DistributedDataParallel."""
        inner: nn.Module = module.module if isinstance(module, DistributedDataParallel) else module
        return inner
