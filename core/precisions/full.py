"""32-true: everything in float32."""

from __future__ import annotations

from torch import nn

from core.precisions.base import Precision

__all__ = ["FullPrecision"]


class FullPrecision(Precision):
    """Everything in float32; no hook has anything to do in the loop.

    A module that was made in another floating point dtype is converted; inputs are taken as they are.
    """

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module``, its floating point parameters and buffers in float32."""
        return module.float()
