"""What the strategy refuses; these tests need no torchft."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from torch_hal_torchft import TorchFTStrategy

from torch_hal import Runtime
from torch_hal.errors import BackendError, CoreError

AT = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "needs the address of a lighthouse: start one by `torchft_lighthouse"),
        ({"lighthouse": 29510}, "lighthouse=29510: must be a string"),
        ({"lighthouse": AT, "timeout": 0}, "timeout=0: must be a number of seconds above 0"),
        ({"lighthouse": AT, "quorum_timeout": True}, "quorum_timeout=True: must be a number of seconds"),
        ({"lighthouse": AT, "min_replicas": 0}, "min_replicas=0"),
        ({"lighthouse": AT, "min_replica": 2}, "min_replicas"),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], match: str) -> None:
    """An argument that is missing, unknown or out of range is named."""
    with pytest.raises(CoreError, match=match):
        TorchFTStrategy(**arguments)


def test_name_alone() -> None:
    """The name alone is refused with what to pass."""
    with pytest.raises(CoreError, match="pass strategy=TorchFTStrategy"):
        Runtime(accelerator="cpu", devices=1, strategy="torchft")


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-true"])
def test_precisions_that_are_refused(precision: str) -> None:
    """Those in which replicas would not stay equal, or that were not tried."""
    with pytest.raises(CoreError, match=f"does not support precision '{precision}'"):
        Runtime(accelerator="cpu", devices=1, strategy=TorchFTStrategy(lighthouse=AT), precision=precision)


def test_engine_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torchft, the error says so."""
    monkeypatch.setitem(sys.modules, "torchft", None)
    runtime = Runtime(accelerator="cpu", devices=1, strategy=TorchFTStrategy(lighthouse=AT))
    with pytest.raises(BackendError, match="torchft cannot be imported"):
        runtime.launch()
