"""64-true: everything in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from core.precisions.base import Precision
from core.precisions.dtypes import DefaultDtype, require_dtype, to_floating

__all__ = ["DoublePrecision"]


class DoublePrecision(Precision):
    """Everything in float64: parameters, buffers, floating point inputs, tensors made in a forward pass, outputs."""

    name = "64-true"
    param_dtype = torch.float64
    compute_dtype = torch.float64
    reduce_dtype = torch.float64
    buffer_dtype = torch.float64
    output_dtype = torch.float64

    def connect(self, device_type: str) -> None:
        """As in the base class; refused where the device has no such dtype."""
        require_dtype(self.name, self.param_dtype, device_type)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module``, its floating point parameters and buffers in the declared dtype."""
        return module.double()

    def forward_context(self) -> DefaultDtype:
        """Tensors made in the forward pass are of the declared dtype too."""
        return DefaultDtype(torch.float64)

    def convert_input(self, data: Any) -> Any:
        """``data`` with all floating point tensors in the declared dtype."""
        return to_floating(data, torch.float64)
