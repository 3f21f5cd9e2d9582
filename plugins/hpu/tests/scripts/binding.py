"""What a process is told of its card. Argument: which case."""

from __future__ import annotations

import os
import sys

import pytest
import stand_ins
import torch

from torch_hal import Runtime
from torch_hal.errors import BackendError


def run(devices: int | list[int]) -> Runtime:
    """Begun."""
    runtime = Runtime(accelerator="hpu", devices=devices)
    runtime.launch()
    return runtime


case = sys.argv[1]
if case == "second card":
    runtime = run([1])
    assert stand_ins.bound == ["1"]  # what the library was told when it took a card
    assert "HLS_MODULE_ID" not in os.environ  # and no one else is
    assert (runtime.plan.devices, str(runtime.device)) == (("hpu:1",), "hpu:0")
    runtime.teardown()
    runtime.launch()
    assert str(runtime.device) == "hpu:0"
    runtime.teardown()
    with pytest.raises(BackendError, match="this process already uses module 1 and cannot change its card"):
        run(1)
elif case == "visible":
    runtime = run(1)
    assert stand_ins.bound == ["1"]
    assert runtime.plan.devices == ("hpu:0",)
elif case == "bound":
    with pytest.raises(BackendError, match="card 0 is module 0, but HLS_MODULE_ID=1 binds this process to another"):
        run(1)
    run([1]).teardown()
    assert os.environ["HLS_MODULE_ID"] == "1"
else:
    torch.manual_seed(11)  # before the library is there
    runtime = run(1)
    first = torch.rand(3, device=runtime.device).tolist()
    runtime.teardown()
    runtime.launch()
    second = torch.rand(3, device=runtime.device).tolist()
    torch.manual_seed(11)
    assert torch.rand(3, device=runtime.device).tolist() == first
    assert first != second  # another run goes on, and does not draw the same again
print("as it should be")
