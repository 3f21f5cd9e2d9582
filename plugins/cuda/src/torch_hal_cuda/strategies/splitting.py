"""Base of the strategies in which one process splits each batch over its machine's devices."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from torch_hal.errors import ConfigurationError
from torch_hal.strategies import Strategy, TrainingStep, TrainingStepOptions
from torch_hal_cuda.parallel import DataParallel

__all__ = ["SplitsBatches"]

_log = logging.getLogger(__name__)


class SplitsBatches(Strategy):
    """One process drives all devices of its machine, and splits each batch over them."""

    one_process_per_node: ClassVar[bool] = True
    moves_batches: ClassVar[bool] = True
    supports_manual_optimization = False  # the step runs once for each part of a batch
    instead: ClassVar[str]
    """The strategy that is recommended instead."""

    def setup_environment(self) -> None:
        """See the base class; logs a warning that the strategy is discouraged."""
        super().setup_environment()
        _log.warning(
            "strategy=%r is discouraged: one process drives all devices of a machine and copies the module to them in "
            "each step. Use strategy=%r, which is faster, with one process per device.",
            self.name,
            self.instead,
        )

    def split(self, module: nn.Module) -> nn.Module:
        """Wrap ``module``, which is on the first device, to split its batches; return it unchanged on one device."""
        if len(self.parallel_devices) == 1:
            return module
        return DataParallel(module, self.parallel_devices, self.accelerator.setup_device)

    def splitting(self, module: nn.Module) -> nn.Module:
        """Return the part of :meth:`setup_module`'s result that splits the batches."""
        return module

    def check_compile(self, argument: str) -> None:
        """See the base class; refused with several devices, whose copies of the module are made in each step.

        Raises:
            ConfigurationError: There are several devices.
        """
        if len(self.parallel_devices) > 1:
            raise ConfigurationError(
                f"{argument}: strategy {self.name!r} copies the module to its devices in each step, without what was "
                f"compiled. Leave it out, or use strategy={self.instead!r}."
            )
        super().check_compile(argument)

    def check_sync_batch_norm(self) -> None:
        """See the base class; refused with several devices, where each normalizes its part of the batch.

        Raises:
            ConfigurationError: There are several devices.
        """
        if len(self.parallel_devices) > 1:
            raise ConfigurationError(
                f"sync_batchnorm=True: strategy {self.name!r} normalizes each device's part of the batch by itself. "
                f"Leave it out, or use strategy={self.instead!r}."
            )
        super().check_sync_batch_norm()

    def inference_module(self, module: nn.Module) -> nn.Module:
        """Return the wrapped module on the first device: evaluation is not split, so its steps see whole batches."""
        return self.unwrap_module(module)

    def training_step(self, forward: Callable[[Any, int], Tensor | None], options: TrainingStepOptions) -> TrainingStep:
        """See the base class; the losses of the parts are averaged over the batch."""
        splitting = self.splitting(options.module)
        if not isinstance(splitting, DataParallel):
            return super().training_step(forward, options)

        def mean_of_parts(batch: Any, batch_idx: int) -> Tensor | None:
            loss = forward(batch, batch_idx)
            return None if loss is None else splitting.mean_over_parts(loss)

        return super().training_step(mean_of_parts, options)
