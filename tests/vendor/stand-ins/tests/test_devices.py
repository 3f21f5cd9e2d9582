"""The stand-ins that give torch a type of device."""

from __future__ import annotations

import pytest
import torch

from .conftest import RunCode

refused_by_cuda = pytest.mark.skipif(
    torch.version.cuda is not None, reason="by declaration: torch's CUDA build refuses simulated HPU and MPS devices"
)


@refused_by_cuda
def test_gaudi(run_code: RunCode) -> None:
    """The simulated devices are torch's ``hpu``; calls of the library are recorded in their order."""
    code = """
import habana_frameworks.torch.core as htcore
import habana_frameworks.torch.hpu as hthpu
import habana_frameworks.torch.distributed.hccl
import torch, stand_ins
weight = torch.ones(2, device="hpu:1", requires_grad=True)
(weight * 3).sum().backward()
htcore.mark_step()
assert weight.grad.tolist() == [3.0, 3.0]
assert hthpu.device_count() == 2
hthpu.random.manual_seed_all(5)
first = torch.rand(2, device="hpu").tolist()
hthpu.random.manual_seed_all(5)
assert torch.rand(2, device="hpu").tolist() == first
assert hthpu.memory_stats("hpu:1")["InUse"] == 16
assert torch.distributed.Backend.default_device_backend_map["hpu"] == "hccl"
print(*stand_ins.calls)
"""
    assert run_code(code, HPU_DEVICES="2").split() == [
        "mark_step",
        "hpu.device_count",
        "hpu.random.manual_seed_all",
        "hpu.random.manual_seed_all",
        "hpu.memory_stats",
    ]


def test_xla(run_code: RunCode) -> None:
    """The simulated device is torch's ``xla``; a step with a barrier marks itself; files hold tensors of the host."""
    code = """
import io, torch, torch_xla, stand_ins
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
weight = torch.nn.Parameter(torch.ones(2, device=xm.xla_device()))
weight.sum().backward()
xm.optimizer_step(torch.optim.SGD([weight], lr=0.5), barrier=True)
assert weight.tolist() == [0.5, 0.5]
torch_xla.sync()
assert xr.world_size() == 1
file = io.BytesIO()
xm.save({"weight": weight}, file)
file.seek(0)
assert torch.load(file)["weight"].device.type == "cpu"
print(*stand_ins.calls)
"""
    expected = "xm.xla_device xm.optimizer_step xm.mark_step torch_xla.sync xr.world_size xm.save"
    assert run_code(code).split() == expected.split()
