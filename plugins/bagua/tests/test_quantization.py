"""MinMaxUInt8 against its formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_hal_bagua.quantization import HEADER_BYTES, dequantize, quantize

from . import reference


@pytest.mark.parametrize("kind", ["normal", "constant", "zeros", "tiny", "large", "one", "ties"])
def test_formula(kind: str) -> None:
    """Bytes, scale and what comes back are the formula's, bit for bit, in every row by itself."""
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(3, 1001, generator=generator)
    rows = {
        "normal": normal * torch.tensor([[1.0], [1e-3], [50.0]]),
        "constant": torch.full((2, 9), 0.37),
        "zeros": torch.zeros(2, 9),
        "tiny": normal * 1e-9,
        "large": normal * 1e30,
        "one": normal[:, :1].contiguous(),
        "ties": torch.arange(512).view(2, 256) / 2,
    }[kind]
    messages = quantize(rows)
    assert messages.dtype == torch.uint8
    assert messages.shape == (len(rows), HEADER_BYTES + rows.shape[1])
    back = dequantize(messages)
    for row, message, restored in zip(rows.numpy(), messages.numpy(), back.numpy(), strict=True):
        q, low, high = reference.quantize(row)
        assert (message[HEADER_BYTES:] == q).all()
        assert (message[:HEADER_BYTES].view(np.float32) == [low, high]).all()
        assert (restored == reference.dequantize(q, low, high)).all()


def test_error_is_half_a_level() -> None:
    """What comes back is off by half of a 255th of the range at most."""
    rows = torch.randn(4, 10_000, generator=torch.Generator().manual_seed(2))
    level = (rows.amax(1, keepdim=True) - rows.amin(1, keepdim=True)) / 255
    assert ((dequantize(quantize(rows)) - rows).abs() <= level * 0.5001).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    """Any floating point dtype is taken, as float32."""
    rows = torch.randn(2, 33, generator=torch.Generator().manual_seed(3)).to(dtype)
    assert torch.equal(quantize(rows), quantize(rows.float()))


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_shows(value: float) -> None:
    """One number that is not finite makes all of its row not finite, and leaves other rows alone."""
    rows = torch.ones(2, 5)
    rows[1, 3] = value
    back = dequantize(quantize(rows))
    assert not torch.isfinite(back[1]).any()
    assert torch.isfinite(back[0]).all()
