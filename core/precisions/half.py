"""16-true and bf16-true: everything in a 16-bit dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from core.precisions.base import Precision
from core.precisions.dtypes import DefaultDtype, half_dtype, require_dtype, to_floating, widen

__all__ = ["HalfPrecision"]


class HalfPrecision(Precision):
    """Everything in a 16-bit dtype: parameters, buffers, floating point inputs, tensors made in a forward pass.

    What the module returns in that dtype is handed over in float32, so that a loss computed from it is too. The loss is
    not scaled: gradients below float16's range are lost, as the name says.

    Args:
        dtype: ``"float16"`` for 16-true, ``"bfloat16"`` for bf16-true, or the :class:`torch.dtype`.

    Raises:
        ConfigurationError: ``dtype`` is another one.
    """

    def __init__(self, dtype: str | torch.dtype) -> None:
        self.param_dtype = self.compute_dtype = self.reduce_dtype = self.buffer_dtype = half_dtype(dtype)
        self.name = "16-true" if self.param_dtype is torch.float16 else "bf16-true"

    def connect(self, device_type: str) -> None:
        """As in the base class; refused where the device has no such dtype."""
        require_dtype(self.name, self.param_dtype, device_type)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module``, its floating point parameters and buffers in the declared dtype."""
        return module.half() if self.param_dtype is torch.float16 else module.bfloat16()

    def forward_context(self) -> DefaultDtype:
        """Tensors made in the forward pass are of the declared dtype too."""
        return DefaultDtype(self.param_dtype)

    def convert_input(self, data: Any) -> Any:
        """``data`` with all floating point tensors in the declared dtype."""
        return to_floating(data, self.param_dtype)

    def convert_output(self, data: Any) -> Any:
        """``data`` with tensors of the 16-bit dtype in float32, and all others as they are."""
        return widen(data, self.param_dtype, self.output_dtype)
