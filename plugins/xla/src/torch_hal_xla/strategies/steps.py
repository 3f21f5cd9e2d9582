"""Marks the end of a step, where XLA runs the collected operations."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer

from torch_hal import Strategy
from torch_hal.errors import ConfigurationError
from torch_hal.strategies import InferenceModule
from torch_hal_xla.checkpoint_io import on_host

__all__ = ["MarksSteps"]


class MarksSteps(Strategy):
    """Base of the XLA strategies.

    They mark the end of a step after each optimizer step and each evaluation batch of the Trainer, and nowhere else. So
    accumulated micro-batches form one computation with their optimizer step.
    """

    accelerators: ClassVar[tuple[str, ...] | None] = ("xla",)
    distributed_type: ClassVar[str | None] = "XLA"
    compile_options: ClassVar[Mapping[str, Any]] = MappingProxyType({"backend": "openxla"})

    def setup_environment(self) -> None:
        """See the base class.

        Raises:
            ConfigurationError: An earlier run switched this process to SPMD mode, which cannot be left.
        """
        import torch_xla.runtime as xr

        if xr.is_spmd():
            raise ConfigurationError(
                f"strategy={self.name!r}: a run of 'xla_spmd' or torch_xla.runtime.use_spmd() has switched this "
                "process to SPMD mode, which cannot be left. Use 'xla_spmd', or start a new process."
            )
        super().setup_environment()

    def mark_step(self) -> None:
        """Run the collected operations."""
        import torch_xla

        torch_xla.sync()

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the gradients, and mark the end of the step."""
        result = super().optimizer_step(optimizer, closure)
        self.mark_step()
        return result

    def inference_module(self, module: nn.Module) -> nn.Module:
        """Wrap ``module`` so that each call is a step."""
        return InferenceModule(super().inference_module(module), after=self.mark_step)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Like the base class, with all tensors on the host, so that any machine can load them."""
        super().save_checkpoint(on_host(checkpoint), path, storage_options)
