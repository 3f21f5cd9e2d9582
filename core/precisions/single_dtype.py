"""64-true, 32-true, 16-true and bf16-true: everything in one floating point dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from core.precisions.base import Precision
from core.precisions.dtypes import DefaultDtype, half_dtype, require_dtype, to_floating, widen

__all__ = ["DoublePrecision", "FullPrecision", "HalfPrecision"]


class DoublePrecision(Precision):
    """Everything in float64: parameters, buffers, floating point inputs, tensors created in forward, outputs."""

    name = "64-true"
    param_dtype = torch.float64
    compute_dtype = torch.float64
    reduce_dtype = torch.float64
    buffer_dtype = torch.float64
    output_dtype = torch.float64

    def connect(self, device_type: str) -> None:
        """As in the base class; raises where the device does not support the dtype."""
        require_dtype(self.name, self.param_dtype, device_type)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module``, its floating point parameters and buffers in the declared dtype."""
        return module.double()

    def forward_context(self) -> DefaultDtype:
        """Tensors created in the forward pass have the declared dtype too."""
        return DefaultDtype(torch.float64)

    def convert_input(self, data: Any) -> Any:
        """``data`` with all floating point tensors in the declared dtype."""
        return to_floating(data, torch.float64)


class FullPrecision(Precision):
    """Everything in float32. No hook runs in the loop.

    A module in another floating point dtype is converted; inputs are used as they are.
    """

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module``, its floating point parameters and buffers in float32."""
        return module.float()


class HalfPrecision(Precision):
    """Everything in a 16-bit dtype: parameters, buffers, floating point inputs, tensors created in forward.

    Outputs in that dtype are converted to float32, and so is a loss computed from them. The loss is not scaled:
    gradients below float16's range become zero.

    Args:
        dtype: ``"float16"`` for 16-true, ``"bfloat16"`` for bf16-true, or the :class:`torch.dtype`.

    Raises:
        ConfigurationError: ``dtype`` is not a 16-bit dtype.
    """

    def __init__(self, dtype: str | torch.dtype) -> None:
        self.param_dtype = self.compute_dtype = self.reduce_dtype = self.buffer_dtype = half_dtype(dtype)
        self.name = "16-true" if self.param_dtype is torch.float16 else "bf16-true"

    def connect(self, device_type: str) -> None:
        """As in the base class; raises where the device does not support the dtype."""
        require_dtype(self.name, self.param_dtype, device_type)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module``, its floating point parameters and buffers in the declared dtype."""
        return module.half() if self.param_dtype is torch.float16 else module.bfloat16()

    def forward_context(self) -> DefaultDtype:
        """Tensors created in the forward pass have the declared dtype too."""
        return DefaultDtype(self.param_dtype)

    def convert_input(self, data: Any) -> Any:
        """``data`` with all floating point tensors in the declared dtype."""
        return to_floating(data, self.param_dtype)

    def convert_output(self, data: Any) -> Any:
        """``data`` with tensors of the 16-bit dtype in float32, and all others as they are."""
        return widen(data, self.param_dtype, self.output_dtype)
