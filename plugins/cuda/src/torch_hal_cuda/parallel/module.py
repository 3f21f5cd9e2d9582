"""A module that splits each call's batch over several devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_hal.errors import ConfigurationError
from torch_hal.strategies import ModuleWrapper
from torch_hal_cuda.parallel.gather import gather, moved
from torch_hal_cuda.parallel.logs import PartLog, log_whole_batch
from torch_hal_cuda.parallel.replicate import check_replicable, replicate
from torch_hal_cuda.parallel.scatter import scatter
from torch_hal_cuda.parallel.threads import run_parts

__all__ = ["DataParallel"]


class DataParallel(ModuleWrapper):
    """``module`` on the first device, and in each call replicas of it on the others; each takes a part of the batch.

    Tensors in the arguments are split along their first dimension, outputs are joined on the first device (see
    :func:`torch_hal_cuda.parallel.scatter.scatter` and :func:`torch_hal_cuda.parallel.gather.gather`). Gradients of all
    parts are added up in the module's own parameters. Buffers are those of the first part, as are attributes that a
    module sets on itself; what a replica sets is lost with it. Needs no collectives, so it runs on any type of device
    that threads of one process can share.

    Source: :class:`torch.nn.DataParallel`, whose copies between devices exist for one type of device only.

    Args:
        module: Already on the first device.
        devices: Two or more.
        select: Makes a device the current one of the thread that calls it.

    Raises:
        WrongTypeError: ``module`` cannot be replicated.
    """

    def __init__(
        self, module: nn.Module, devices: Sequence[torch.device], select: Callable[[torch.device], None]
    ) -> None:
        super().__init__(module)
        check_replicable(module)
        self.devices = tuple(devices)
        self.select = select
        self.part_sizes: tuple[int, ...] = ()
        """Of the last call: how many items each device got."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's outputs on all parts: joined, or as a list if ``module.takes_parts``."""
        parts, sizes = scatter((args, kwargs), self.devices)
        self.part_sizes = tuple(sizes)
        modules = [self.module, *(replicate(self.module, device) for device in self.devices[1 : len(parts)])]
        logs = [PartLog(size) for size in sizes]
        outputs = run_parts(modules, parts, self.devices, self.select, logs)
        log_whole_batch(logs, self.devices[0])
        if getattr(self.module, "takes_parts", False):
            return [moved(output, self.devices[0]) for output in outputs]
        return gather(outputs, self.devices[0])

    def mean_over_parts(self, loss: Tensor) -> Tensor:
        """The mean of the last call's losses, each weighted by its part's size: a scalar.

        Raises:
            ConfigurationError: ``loss`` is neither a scalar already nor a vector with an item for each part.
        """
        if not loss.dim():
            return loss
        if loss.shape != (len(self.part_sizes),):
            raise ConfigurationError(
                f"loss: of shape {tuple(loss.shape)} after it was gathered from {len(self.part_sizes)} part(s) of the "
                "batch. Valid: a scalar from training_step, which becomes a vector of one item for each part; or a "
                "scalar from training_step_end."
            )
        total = sum(self.part_sizes)
        shares = [part * (size / total) for part, size in zip(loss.unbind(), self.part_sizes, strict=True)]
        return torch.stack(shares).sum()
