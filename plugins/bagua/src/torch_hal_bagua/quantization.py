"""MinMaxUInt8: encodes rows of floating point values as bytes, with a separate scale for each row.

For a row ``x``, in float32::

    scale = 255 / (max(x) - min(x) + 1e-7)
    upper = rint(max(x) * scale);  lower = upper - 255
    q     = clamp(rint(x * scale), lower, upper) - lower
    x'    = (q + lower) / scale

``rint`` rounds halves to the even neighbour. A message contains a row's ``min`` and ``max`` as two float32 values and
then its bytes ``q``, so that one collective sends both. If a value is not finite, the whole decoded row is not finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["HEADER_BYTES", "dequantize", "quantize"]

HEADER_BYTES = 8
_EPSILON = 1e-7


def quantize(rows: Tensor) -> Tensor:
    """Encode ``rows`` as messages.

    Args:
        rows: Shape ``(n, k)``, ``k`` at least 1, of a floating point dtype.

    Returns:
        Shape ``(n, 8 + k)``, uint8.
    """
    values = rows.float()
    low, high = values.amin(dim=1, keepdim=True), values.amax(dim=1, keepdim=True)
    scale, lower, upper = _scale_and_limits(low, high)
    levels = torch.mul(values, scale).round_()
    torch.maximum(levels, lower, out=levels)  # on the CPU, aminmax and clamp are many times slower
    torch.minimum(levels, upper, out=levels).sub_(lower)
    header = torch.cat([low, high], dim=1).view(torch.uint8)
    return torch.cat([header, levels.to(torch.uint8)], dim=1)


def dequantize(messages: Tensor) -> Tensor:
    """Decode the rows of ``messages``.

    Args:
        messages: The result of :func:`quantize`.

    Returns:
        Shape ``(n, k)``, float32.
    """
    header = messages[:, :HEADER_BYTES].reshape(-1).view(torch.float32).view(-1, 2)
    scale, lower, _ = _scale_and_limits(header[:, :1], header[:, 1:])
    return messages[:, HEADER_BYTES:].to(torch.float32).add_(lower).div_(scale)


def _scale_and_limits(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    span = high - low + _EPSILON
    scale = torch.full_like(span, 255).div_(span)  # 255 / span would multiply by a rounded reciprocal
    upper = torch.round(high * scale)
    return scale, upper - 255, upper
