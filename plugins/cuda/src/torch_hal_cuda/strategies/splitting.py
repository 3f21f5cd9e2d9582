"""What strategies have in common in which one process splits each batch over its machine's devices."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from core.strategies import Strategy, TrainingStepOptions
from torch_hal_cuda.parallel import DataParallel

__all__ = ["SplitsBatches"]

_log = logging.getLogger(__name__)


class SplitsBatches(Strategy):
    """One process drives all devices of its machine, and splits each batch over them."""

    one_process_per_node: ClassVar[bool] = True
    instead: ClassVar[str]
    """The strategy that users are better off with."""

    def setup_environment(self) -> None:
        """As in the base class; says that the strategy is discouraged."""
        super().setup_environment()
        _log.warning(
            "strategy %r is discouraged: one process feeds all devices of a machine and copies the module to them in "
            "each step. strategy=%r is faster, with a process for each device.",
            self.name,
            self.instead,
        )

    def split(self, module: nn.Module) -> nn.Module:
        """``module``, which is on the first device, so that it splits its batches; itself on one device."""
        if len(self.parallel_devices) == 1:
            return module
        return DataParallel(module, self.parallel_devices, self.accelerator.setup_device)

    def splitting(self, module: nn.Module) -> nn.Module:
        """Of what :meth:`setup_module` returned: what splits the batches."""
        return module

    def unwrap_module(self, module: nn.Module) -> nn.Module:
        """The module within."""
        inner = self.splitting(module)
        return inner.module if isinstance(inner, DataParallel) else inner

    def inference_module(self, module: nn.Module) -> nn.Module:
        """The module within, on the first device: evaluation is not split, so its steps see whole batches."""
        return self.unwrap_module(module)

    def training_step(
        self, forward: Callable[[Any, int], Tensor | None], options: TrainingStepOptions
    ) -> Callable[[Any, int, bool], Tensor | None]:
        """As in the base class; a loss of each part becomes the mean over the batch."""
        splitting = self.splitting(options.module)
        if not isinstance(splitting, DataParallel):
            return super().training_step(forward, options)

        def mean_of_parts(batch: Any, batch_idx: int) -> Tensor | None:
            loss = forward(batch, batch_idx)
            return None if loss is None else splitting.mean_over_parts(loss)

        return super().training_step(mean_of_parts, options)
