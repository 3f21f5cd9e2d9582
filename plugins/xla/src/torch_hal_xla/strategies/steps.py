"""Marking where a step ends, which is where XLA runs what was gathered."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from core import Strategy
from core.errors import ConfigurationError
from core.nested import map_tensors
from torch_hal_xla.checkpoint_io import on_host

__all__ = ["MarksSteps"]


class MarksSteps(Strategy):
    """What the strategies of XLA share.

    A step ends, and is marked, after each step of an optimizer and after each batch of the Trainer's evaluation;
    nowhere else. So micro-batches that are accumulated are one computation with the step that they lead to.
    """

    accelerators: ClassVar[tuple[str, ...] | None] = ("xla",)

    def setup_environment(self) -> None:
        """As in the base class.

        Raises:
            ConfigurationError: An earlier run has put this process into SPMD mode, which it cannot leave.
        """
        import torch_xla.runtime as xr

        if xr.is_spmd():
            raise ConfigurationError(
                f"strategy={self.name!r}: this process is in torch_xla's SPMD mode, which does not end, since a run of "
                "'xla_spmd' or a call of torch_xla.runtime.use_spmd(). Valid: 'xla_spmd', or a process of its own."
            )
        super().setup_environment()

    def mark_step(self) -> None:
        """Run what was gathered."""
        import torch_xla

        torch_xla.sync()

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the gradients, and end the step."""
        result = super().optimizer_step(optimizer, closure)
        self.mark_step()
        return result

    def inference_module(self, module: nn.Module) -> nn.Module:
        """``module``, each call of which is a step."""
        return _StepModule(super().inference_module(module), self.mark_step)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """As in the base class, all tensors on the host whatever the CheckpointIO: any machine can read them."""
        super().save_checkpoint(on_host(checkpoint), path, storage_options)


class _StepModule(nn.Module):
    """Calls ``module``, and marks the end of a step.

    Args:
        module: What is called.
        mark_step: What marks it.
    """

    def __init__(self, module: nn.Module, mark_step: Callable[[], None]) -> None:
        super().__init__()
        self.module = module
        self._mark_step = mark_step
        self.training = module.training  # not train(), which would wake parts that are in evaluation mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's, without gradients.

        Outside of inference mode, in which torch_xla has no linear layer.
        """
        with torch.inference_mode(False), torch.no_grad():
            output = self.module(*map_tensors(_usable, args), **map_tensors(_usable, kwargs))
        self._mark_step()
        return output


def _usable(tensor: Tensor) -> Tensor:
    """``tensor``, or a copy of one from inference mode: those cannot be changed in place outside of it."""
    return tensor.clone() if tensor.is_inference() else tensor
