"""Objects that processes exchange as bytes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from core.errors import ConfigurationError
from core.strategies import SingleDeviceStrategy
from core.utilities.objects import pickled, unpickled

DTYPES = ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


@pytest.mark.parametrize("name", [*DTYPES, "float32", "int16", "bool", "complex64", "bfloat16"])
def test_tensors_of_any_dtype(name: str) -> None:
    """Values, dtype and shape stay, of views too; within any object, and for parameters."""
    dtype = getattr(torch, name)
    values = torch.tensor([[1.0, 2.0, 4.0], [0.0, 1.0, 8.0]]).to(dtype)
    for tensor in (values, values.t(), values[:, 1], values[0, 0], values[:0], values[0, ::2][:1], values.t()[:1, :1]):
        again = unpickled(pickled({"a": [tensor, "text"]}))["a"][0]
        assert (again.dtype, again.shape) == (dtype, tensor.shape)
        assert again.float().tolist() == tensor.float().tolist() if not dtype.is_complex else torch.equal(again, tensor)
    frozen = unpickled(pickled(nn.Parameter(values, requires_grad=False)))
    assert type(frozen) is nn.Parameter
    assert (frozen.dtype, frozen.requires_grad) == (dtype, False)


def test_one_process_reduces_the_same_dtypes() -> None:
    """With the results and the errors of several processes."""
    strategy = SingleDeviceStrategy(accelerator="cpu")
    reduced = strategy.reduce(torch.tensor([2.0]).to(torch.float8_e5m2), "mean")
    assert (reduced.dtype, reduced.float().tolist()) == (torch.float8_e5m2, [2.0])
    assert strategy.reduce(torch.tensor([3], dtype=torch.uint64), "mean").dtype is torch.float32
    with pytest.raises(ConfigurationError, match="in which torch does not compute"):
        strategy.reduce(torch.tensor([3], dtype=torch.uint64), "sum")
    with pytest.raises(ConfigurationError, match="only the mean and the sum"):
        strategy.reduce(torch.tensor([3j]), "product")
