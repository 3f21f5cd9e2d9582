"""What is refused, and what is named in the log."""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch_hal_torchao import Float8Precision, QATPrecision

from torch_hal import Runtime
from torch_hal.errors import BackendError, ConfigurationError, WrongTypeError

needs_torchao = pytest.mark.skipif(find_spec("torchao") is None, reason="torchao is not installed; run nox -s torchao")


def prepared(precision: Any, module: nn.Module) -> nn.Module:
    with Runtime(accelerator="cpu", devices=1, precision=precision) as runtime:
        runtime.prepare(module)
        return module


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Float8Precision("per_row"), ConfigurationError, "recipe='per_row' is unknown. Valid: 'tensorwise'"),
        (lambda: Float8Precision(emulate=1), WrongTypeError, "emulate=1 must be True or False"),  # type: ignore[arg-type]
        (lambda: QATPrecision("int2"), ConfigurationError, "weights='int2' is unknown. Valid: 'int8', 'int4'"),
        (lambda: QATPrecision(activations="fp8"), ConfigurationError, "activations='fp8' is unknown. Valid: 'int8'"),
        (lambda: QATPrecision(group_size=0), ConfigurationError, "group_size=0"),
    ],
)
def test_wrong_arguments(make: Any, error: type[Exception], match: str) -> None:
    """An argument that is unknown or out of range is named."""
    with pytest.raises(error, match=match):
        make()


@needs_torchao
def test_group_size_that_does_not_divide() -> None:
    """A group size that was given and does not divide a layer's inputs is refused, with the layer's name."""
    with pytest.raises(ConfigurationError, match="group_size=16 does not divide the inputs of '0'"):
        prepared(QATPrecision("int4", group_size=16), nn.Sequential(nn.Linear(24, 4)))


@needs_torchao
def test_group_size_by_default(caplog: pytest.LogCaptureFixture) -> None:
    """By default such a layer has one scale a row, and the log names it."""
    with caplog.at_level(logging.WARNING):
        prepared("int4-qat", nn.Sequential(nn.Linear(24, 32), nn.Linear(32, 4)))
    assert "one scale a row in '0', whose inputs 32 does not divide" in caplog.text


@needs_torchao
@pytest.mark.parametrize("kind", [Float8Precision, QATPrecision])
def test_parts_that_are_kept(kind: Any) -> None:
    """Layers in keep_float32 stay torch's during the run."""
    net = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 4))
    with Runtime(accelerator="cpu", devices=1, precision=kind(keep_float32="1")) as runtime:
        runtime.prepare(net)
        assert type(net[0]) is not nn.Linear
        assert type(net[1]) is nn.Linear
    with pytest.raises(ConfigurationError, match="the module has no part 'head'"):
        prepared(kind(keep_float32="head"), net)


@needs_torchao
def test_module_without_layers(caplog: pytest.LogCaptureFixture) -> None:
    """A module in which nothing changes, or a layer that is not changed, is named in the log."""
    with caplog.at_level(logging.WARNING):
        prepared("int8-qat", nn.Sequential(nn.Conv2d(1, 1, 3)))
        prepared("int8-qat", nn.TransformerEncoderLayer(32, 2, 32))
    assert "changes nothing in Sequential: it has no nn.Linear" in caplog.text
    assert "does not change self_attn.out_proj (NonDynamicallyQuantizableLinear)" in caplog.text


@needs_torchao
def test_layer_by_itself() -> None:
    """A module that is itself a linear layer is changed, and changed back."""
    layer = nn.Linear(8, 4)
    with Runtime(accelerator="cpu", devices=1, precision="int8-qat") as runtime:
        runtime.prepare(layer)
        assert type(layer).__name__ == "FakeQuantizedLinear"
    assert type(layer) is nn.Linear


@needs_torchao
def test_device_without_float8(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that cannot multiply float8 is refused with the cause; rounding by ``emulate=True`` works there."""

    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("scaled_mm is not implemented here\nstack")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    net = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(BackendError, match="type 'cpu' cannot multiply float8: scaled_mm is not implemented here"):
        prepared("fp8-mixed", net)
    prepared(Float8Precision(emulate=True), net)


@needs_torchao
@pytest.mark.parametrize("name", ["fp8-mixed", "int4-qat"])
def test_torchao_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torchao, the error says so, and what to install."""
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(BackendError, match=r"torchao cannot be imported: .*pip install torchao"):
        prepared(name, nn.Sequential(nn.Linear(32, 4)))
