"""Checks that need the simulated device in their own process; test_simulated_device runs pytest on this file."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import simx
import torch
import xpulib
from torch import Tensor, nn
from torch.utils.data import DataLoader

from core import Module, Trainer
from core.accelerators import TorchDeviceAccelerator
from core.accelerators.torch_device import device_types
from core.errors import DeviceError
from core.strategies.wrapping import move_module, move_optimizer_state

from .device_rows import ACCEPTED, NOT_THERE, REFUSED

_FIRST, _SECOND = torch.device("simx:0"), torch.device("simx:1")
_DEVICES = pytest.mark.parametrize("device", [_FIRST, _SECOND], ids=str)
_module: Any = torch.get_device_module(simx.DEVICE_TYPE)


@pytest.fixture(autouse=True)
def _first_device_again() -> Any:
    yield
    _module.set_device(0)


# -- training ----------------------------------------------------------------------------------------------------------


def _linear() -> nn.Module:
    return nn.Sequential(nn.Linear(48, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (3, 4, 4)),
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def _losses(
    model: Callable[[], nn.Module], optimizer: Any, device: torch.device, steps: int = 12, autocast: bool = False
) -> list[float]:
    torch.manual_seed(0)
    net = model().to(device)
    stepper = optimizer(net.parameters())
    draw = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        inputs = torch.randn(16, 48, generator=draw)
        labels = inputs[:, :4].argmax(1)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
            loss = nn.functional.cross_entropy(net(inputs.to(device)), labels.to(device))
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    assert all(parameter.device == device for parameter in net.parameters())
    return losses


@_DEVICES
@pytest.mark.parametrize("model", [_linear, _convolutional])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    ],
    ids=["SGD", "AdamW"],
)
def test_training_equals_the_cpu(device: torch.device, model: Any, optimizer: Any) -> None:
    """Training on either device gives the losses of the CPU bit for bit, and the losses fall."""
    losses = _losses(model, optimizer, device)
    assert losses == _losses(model, optimizer, torch.device("cpu"))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("model", [_linear, _convolutional])
def test_autocast_equals_the_cpu(model: Any) -> None:
    """Under bf16 autocast of the device the losses are those of the CPU's, and not those without autocast."""

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    losses = _losses(model, sgd, _SECOND, autocast=True)
    assert losses == _losses(model, sgd, torch.device("cpu"), autocast=True)
    assert losses != _losses(model, sgd, _SECOND)


def test_autocast_of_another_type_has_no_effect() -> None:
    """The device computes in bf16 under its own autocast only."""
    net, inputs = nn.Linear(4, 4).to(_FIRST), torch.ones(2, 4, device=_FIRST)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert net(inputs).dtype == torch.float32
    with torch.autocast("simx", dtype=torch.float16):
        assert net(inputs).dtype == torch.float16


def test_loss_scaling() -> None:
    """torch's gradient scaler runs on the device and skips a step whose gradients are infinite."""
    scaler = torch.amp.GradScaler("simx", init_scale=8.0)
    parameter = nn.Parameter(torch.ones(2, device=_SECOND))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scaler.scale((parameter * 2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [0.0, 0.0]
    optimizer.zero_grad()
    scaler.scale((parameter * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [0.0, 0.0]
    assert scaler.get_scale() == 4.0


def test_backward_from_another_thread() -> None:
    """A graph on the second device can be differentiated from any thread."""
    leaf = torch.ones(3, device=_SECOND, requires_grad=True)
    thread = threading.Thread(target=lambda: (leaf * leaf).sum().backward())
    thread.start()
    thread.join()
    assert leaf.grad is not None
    assert leaf.grad.device == _SECOND
    assert leaf.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_moved_module_keeps_its_parameters() -> None:
    """Tied weights stay tied, and an optimizer made before goes on with them; ``module.to`` alone would lose both."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

    net = Tied()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    before = [id(parameter) for parameter in net.parameters()]
    assert move_module(net, _SECOND) is net
    assert [id(parameter) for parameter in net.parameters()] == before
    assert net.second.weight is net.first.weight
    assert {parameter.device for parameter in optimizer.param_groups[0]["params"]} == {_SECOND}
    assert torch.__future__.get_swap_module_params_on_conversion() is False


@pytest.mark.parametrize("is_held", [False, True], ids=["freed", "graph-held"])
def test_a_module_moved_back_keeps_its_ties(is_held: bool) -> None:
    """After a step on the device, also while a loss still holds its graph; then it trains on as on the host."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.register_buffer("scale", torch.full((3,), 2.0))
            self.also = self.first

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.second(self.first(inputs) * self.scale)
            return output

    inputs, nets = torch.ones(2, 3), (Tied(), Tied())
    for net, device in zip(nets, (_SECOND, torch.device("cpu")), strict=True):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        before = [id(parameter) for parameter in net.parameters()]
        for place in (device, torch.device("cpu")):
            move_module(net, place)
            optimizer.zero_grad()
            loss = net(inputs.to(place)).square().mean()
            loss.backward()
            optimizer.step()
            if not is_held:
                del loss
        assert [id(parameter) for parameter in net.parameters()] == before
        assert net.second.weight is net.first.weight is net.also.weight
        assert {tensor.device.type for tensor in (*net.parameters(), *net.buffers())} == {"cpu"}
        assert {parameter.grad.device.type for parameter in net.parameters() if parameter.grad is not None} == {"cpu"}
    for name, value in nets[0].state_dict().items():
        assert torch.equal(value, nets[1].state_dict()[name]), name


# -- tensors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda t: t[1],
        lambda t: t[:, 1:3],
        lambda t: t[t > 4],
        lambda t: t[[0, 2]],
        lambda t: t.T.contiguous(),
        lambda t: t.view(-1)[3:],
        lambda t: t.unsqueeze(0).expand(2, 3, 4),
        lambda t: torch.cat([t, t], dim=1),
        lambda t: torch.stack([t, t]).sum(0),
        lambda t: t.chunk(2, 1)[1],
        lambda t: t.unbind(1)[2],
        lambda t: t.diagonal(),
        lambda t: t.topk(2).indices,
        lambda t: torch.unique(t),
        lambda t: torch.where(t > 2, t, 0.0),
        lambda t: t.masked_fill(t > 3, 0),
        lambda t: torch.einsum("ij,kj->ik", t, t),
        lambda t: t.to(torch.bfloat16).float(),
        lambda t: t.clone().resize_(2, 9)[0, :9],
        lambda t: torch.sum(t, dim=0, out=torch.empty(0, device=t.device)),
        lambda t: torch.add(t, t, out=torch.empty(3, 4, device=t.device)),
        lambda t: torch.arange(5, device=t.device),
        lambda t: torch.tensor([[1.0, 2.0]], device=t.device),
        lambda t: t.new_full((2,), 7),
        lambda t: torch.view_as_real(torch.complex(t, t)),
        lambda t: t.to("cpu", non_blocking=True).to(t.device),
    ],
)
def test_operators_equal_the_cpu(function: Callable[[Tensor], Tensor]) -> None:
    """Operators, views and copies give the CPU's values, shapes and strides on the second device."""
    host = torch.arange(12.0).reshape(3, 4)
    expected, result = function(host), function(host.to(_SECOND))
    assert result.device == _SECOND
    assert (result.dtype, result.shape, result.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert torch.equal(result.cpu(), expected)


def test_views_share_memory() -> None:
    """Writing through a view changes what it is a view of."""
    tensor = torch.zeros(3, 4, device=_SECOND)
    tensor.t()[3].add_(1)
    tensor[1, 2] = 5
    tensor.view(-1)[0] = 9
    assert tensor.tolist() == [[9, 0, 0, 1], [0, 0, 5, 1], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    "mixing",
    [
        lambda: torch.ones(2, device=_FIRST) + torch.ones(2, device=_SECOND),
        lambda: torch.ones(2) + torch.ones(2, device=_FIRST),
        lambda: nn.Linear(2, 2).to(_SECOND)(torch.ones(1, 2)),
        lambda: nn.functional.cross_entropy(torch.ones(2, 3, device=_FIRST), torch.tensor([0, 1])),
        lambda: torch.rand(2, device=_FIRST, generator=torch.Generator()),
        lambda: torch.ones(2, device="simx:2"),
    ],
)
def test_devices_are_apart(mixing: Callable[[], Tensor]) -> None:
    """Tensors of different devices do not meet, nor does a tensor of the device meet one of the host."""
    with pytest.raises(RuntimeError, match=r"at least two devices|device type for generator|no device 2"):
        mixing()


def test_the_host_cannot_read_the_device() -> None:
    """The device's memory is reached by a copy only."""
    with pytest.raises(TypeError, match="simx"):
        torch.ones(2, device=_FIRST).numpy()


def test_current_device() -> None:
    """A device without an index is the current one."""
    _module.set_device(1)
    assert torch.ones(1, device="simx").device == _SECOND
    assert torch.accelerator.current_device_index() == 1
    with _module.device(0):
        assert torch.ones(1, device="simx").device == _FIRST
    with _SECOND:
        assert nn.Linear(2, 2).weight.device == _SECOND


@pytest.mark.parametrize("map_location", [None, "cpu", "simx:0"])
def test_saving_and_loading(map_location: str | None) -> None:
    """A state dict comes back from a file on the device it was on, or on the one asked for."""
    state = nn.Linear(2, 2).to(_SECOND).state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True, map_location=map_location)
    assert loaded["weight"].device == torch.device(map_location or _SECOND)
    assert torch.equal(loaded["weight"].cpu(), state["weight"].cpu())


def test_copies_of_objects() -> None:
    """Deep copies and pickles of what lies on the device are copies on the same device."""
    state = {"momentum": torch.ones(2, device=_SECOND)}
    for copied in (copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert copied["momentum"].device == _SECOND
        assert copied["momentum"].tolist() == [1.0, 1.0]
        assert copied["momentum"].data_ptr() != state["momentum"].data_ptr()


def test_pinned_batches() -> None:
    """A loader with ``pin_memory=True`` hands over pinned batches, which move to the device without blocking."""
    batches = list(DataLoader([0.0, 1.0, 2.0, 3.0], batch_size=2, pin_memory=True))  # type: ignore[arg-type]
    assert all(batch.is_pinned() for batch in batches)
    assert not torch.ones(2).is_pinned()
    assert [batch.to(_FIRST, non_blocking=True).tolist() for batch in batches] == [[0.0, 1.0], [2.0, 3.0]]


# -- random numbers ----------------------------------------------------------------------------------------------------


def test_each_device_has_its_generator() -> None:
    """Drawing on one device moves neither the other's generator nor the host's; a seed sets them all."""
    torch.manual_seed(3)
    host, other = torch.get_rng_state(), _module.get_rng_state(_FIRST)
    drawn = nn.functional.dropout(torch.ones(64, device=_SECOND))
    assert torch.equal(torch.get_rng_state(), host)
    assert torch.equal(_module.get_rng_state(_FIRST), other)
    torch.manual_seed(3)
    assert torch.equal(nn.functional.dropout(torch.ones(64, device=_FIRST)).cpu(), drawn.cpu())


def test_fork_after_use() -> None:
    """As with real hardware, a process forked from one that uses the device cannot use it; others can."""
    torch.ones(1, device=_FIRST)
    assert TorchDeviceAccelerator("simx").fork_unsafe_reason() == "torch.simx is already initialized"
    child = os.fork()
    if child == 0:
        try:
            torch.ones(1, device=_FIRST)
        except RuntimeError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


# -- the accelerator of core that serves it, with no plugin ------------------------------------------------------------


def test_torch_reports_it() -> None:
    """The type is found under its own name, and is what the accelerator serves where no name is given."""
    assert device_types() == ("simx",)
    accelerator = TorchDeviceAccelerator()
    assert accelerator.name == "simx"
    assert accelerator.is_available() is True
    assert accelerator.auto_device_count() == accelerator.device_limit() == 2
    assert accelerator.get_parallel_devices([1, 0]) == [_SECOND, _FIRST]


def test_its_own_collectives_and_autocast() -> None:
    """Collectives come from the backend that the vendor registered; autocast is the device's own."""
    assert TorchDeviceAccelerator("simx").process_group_backend(_SECOND) == "simccl"
    assert TorchDeviceAccelerator("simx").autocast_device_type(_SECOND) == "simx"


def test_setup_and_synchronize() -> None:
    """The process's current device becomes the one that was set up, and waiting reaches the device."""
    accelerator = TorchDeviceAccelerator("simx")
    accelerator.setup_device(_SECOND)
    assert _module.current_device() == 1
    before = len(_module.synchronized)
    accelerator.synchronize(_FIRST)
    assert _module.synchronized[before:] == [0]
    accelerator.empty_cache(_FIRST)


def test_random_state() -> None:
    """Putting a device's state back repeats its draws exactly."""
    accelerator = TorchDeviceAccelerator("simx")
    state = accelerator.get_rng_state(_SECOND)
    drawn = torch.rand(5, device=_SECOND)
    torch.rand(5, device=_FIRST)
    accelerator.set_rng_state(state, _SECOND)
    assert torch.equal(torch.rand(5, device=_SECOND).cpu(), drawn.cpu())


def test_stats_follow_memory() -> None:
    """Statistics are those of the device asked for, and follow what is allocated and freed there."""
    accelerator = TorchDeviceAccelerator("simx")
    gc.collect()
    before = accelerator.get_device_stats(_SECOND)
    tensor = torch.zeros(1000, device=_SECOND)
    view = tensor[3:]
    del tensor
    held = accelerator.get_device_stats("simx:1")
    assert held["memory_allocated_bytes"] - before["memory_allocated_bytes"] == 4000
    assert accelerator.get_device_stats(_FIRST)["memory_allocated_bytes"] <= before["memory_allocated_bytes"] + 4000
    del view
    assert accelerator.get_device_stats(_SECOND)["memory_allocated_bytes"] == before["memory_allocated_bytes"]
    assert accelerator.get_device_stats(_SECOND)["memory_allocated_peak_bytes"] >= held["memory_allocated_bytes"]


def test_grammar() -> None:
    """``devices=`` means the same here as on every other accelerator."""
    accelerator = TorchDeviceAccelerator("simx")
    for devices, expected in [*ACCEPTED, ("auto", [0, 1]), (-1, [0, 1]), (" -1 ", [0, 1])]:
        assert accelerator.parse_devices(devices) == expected
    for devices in [*REFUSED, *NOT_THERE]:
        with pytest.raises(DeviceError, match=r"(?s)for accelerator 'simx'.*available: devices 0 to 1\."):
            accelerator.parse_devices(devices)


def test_the_vendor_s_library() -> None:
    """The stand-in library of the vendor answers for the simulated devices and records what it was asked."""
    xpulib.calls.clear()
    assert xpulib.is_available() is True
    assert xpulib.available_devices() == 2
    assert xpulib.device(1) == _SECOND
    assert xpulib.stats(_FIRST)["memory_allocated_bytes"] >= 0
    assert xpulib.calls == ["is_available", "available_devices", "device", "stats"]


def test_optimizer_state_follows_its_parameters() -> None:
    """An optimizer that has stepped on the host goes on stepping after its module was moved, as on the host."""
    torch.manual_seed(0)
    moved, stays = nn.Linear(3, 1), nn.Linear(3, 1)
    stays.load_state_dict(moved.state_dict())
    inputs = torch.ones(2, 3)
    optimizers = []
    for module in (moved, stays):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        module(inputs).sum().backward()
        optimizer.step()
        optimizers.append(optimizer)
    move_module(moved, _FIRST)
    move_optimizer_state(optimizers[0])
    for module, optimizer in zip((moved, stays), optimizers, strict=True):
        optimizer.zero_grad()
        module(inputs.to(next(module.parameters()).device)).sum().backward()
        optimizer.step()
    assert torch.equal(moved.weight.cpu(), stays.weight)


def test_the_loss_is_checked_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    """A device trains without operations that only the Trainer's own check would need, and the check finds a NaN."""

    class Net(Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def training_step(self, batch: Tensor, batch_idx: int) -> Any:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(value: float) -> int:
        names = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
        quiet: dict[str, Any] = dict.fromkeys(names, False)
        trainer = Trainer(accelerator="simx", devices=1, max_epochs=1, **quiet)
        trainer.fit(Net(), DataLoader([torch.full((2,), value)] * 4, batch_size=2))  # type: ignore[arg-type]
        return trainer.global_step

    lacking = torch.library.Library("aten", "IMPL")
    for operation in ("abs", "isfinite"):

        def lacks(*_: Any, operation: str = operation) -> None:
            raise RuntimeError(f"{operation} is not implemented")

        lacking.impl(operation, lacks, "PrivateUse1")
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.ones(1, device=_FIRST).isfinite()
    with caplog.at_level("WARNING"):
        assert fit(1.0) == 2
        assert "the loss is" not in caplog.text
        assert fit(float("nan")) == 2
    assert "the loss is nan in step" in caplog.text
