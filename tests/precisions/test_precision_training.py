"""Each precision by name, against the same training written by hand in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from core import Runtime
from core.builtin import core_precisions
from core.precisions import HalfPrecision, Precision

NAMES = ["64-true", "32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed"]


def precision_named(name: str) -> Precision:
    (spec,) = (spec for spec in core_precisions() if spec.name == name)
    module, _, attribute = spec.target.partition(":")
    precision: Precision = getattr(import_module(module), attribute)(**spec.init_args)
    precision.connect("cpu")
    return precision


class Net(nn.Module):
    """Two layers with a buffer, which notes what its forward pass computes in and makes tensors in."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.last = nn.Linear(16, 2)
        self.register_buffer("scale", torch.full((16,), 0.5))
        self.dtypes: dict[str, torch.dtype] = {}

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.dtypes = {"compute": hidden.dtype, "made": torch.zeros(()).dtype}
        result: Tensor = self.last(torch.tanh(hidden) * self.scale)
        return result


def fresh() -> tuple[Net, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(7)
    return Net(), [(torch.randn(8, 6), torch.randn(8, 2)) for _ in range(6)]


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


def train(precision: Precision, clip: float | None) -> tuple[Net, Tensor]:
    """The loop that a runtime builds from the hooks."""
    net, batches = fresh()
    module = precision.convert_module(net)
    assert module is net
    optimizer = sgd(net)
    output = torch.empty(0)
    for batch in batches:
        optimizer.zero_grad()
        x, y = precision.convert_input(batch)
        with precision.forward_context():
            output = module(x)
        output = precision.convert_output(output)
        precision.backward(mse_loss(output, y.to(output.dtype)))
        if clip is not None:
            precision.unscale_gradients(optimizer)
            precision.clip_gradients(net.parameters(), clip)
        precision.optimizer_step(optimizer)
    return net, output


def by_hand(dtype: torch.dtype, clip: float | None) -> Net:
    """Everything in ``dtype``; the loss of 16-bit outputs in float32."""
    net, batches = fresh()
    net.to(dtype)
    optimizer = sgd(net)
    loss_dtype = torch.float64 if dtype is torch.float64 else torch.float32
    for x, y in batches:
        mse_loss(net(x.to(dtype)).to(loss_dtype), y.to(dtype).to(loss_dtype)).backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return net


def by_hand_autocast(dtype: torch.dtype, clip: float | None) -> Net:
    net, batches = fresh()
    optimizer = sgd(net)
    for x, y in batches:
        with torch.autocast("cpu", dtype=dtype):
            output = net(x)
        mse_loss(output.float(), y).backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return net


def by_hand_scaled(clip: float | None) -> Net:
    net, batches = fresh()
    optimizer = sgd(net)
    scaler = torch.amp.GradScaler("cpu")
    for x, y in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            output = net(x)
        scaler.scale(mse_loss(output.float(), y)).backward()  # type: ignore[no-untyped-call]
        if clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return net


HAND: dict[str, Callable[[float | None], Net]] = {
    "64-true": lambda clip: by_hand(torch.float64, clip),
    "32-true": lambda clip: by_hand(torch.float32, clip),
    "16-true": lambda clip: by_hand(torch.float16, clip),
    "bf16-true": lambda clip: by_hand(torch.bfloat16, clip),
    "16-mixed": by_hand_scaled,
    "bf16-mixed": lambda clip: by_hand_autocast(torch.bfloat16, clip),
}


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("name", NAMES)
def test_training_equals_plain_torch_bit_for_bit(name: str, clip: float | None) -> None:
    """Parameters after six steps are those of the loop that a user would write by hand."""
    net, _ = train(precision_named(name), clip)
    expected = HAND[name](clip)
    start, _ = fresh()
    for (key, value), truth, before in zip(
        net.named_parameters(), expected.parameters(), start.parameters(), strict=True
    ):
        assert value.dtype is truth.dtype, key
        assert torch.equal(value, truth), key
        assert not torch.equal(value.float(), before), key


@pytest.mark.parametrize("name", NAMES)
def test_declaration_is_what_the_hooks_do(name: str) -> None:
    """Parameters, buffers, computation, gradients and outputs have the declared dtypes."""
    precision = precision_named(name)
    assert precision.name == name
    net, output = train(precision, None)
    assert {p.dtype for p in net.parameters()} == {precision.param_dtype}
    assert net.scale.dtype is precision.buffer_dtype
    assert net.dtypes["compute"] is precision.compute_dtype
    assert output.dtype is precision.output_dtype
    assert net.dtypes["made"] is precision.param_dtype
    assert {p.grad.dtype for p in net.parameters() if p.grad is not None} == {precision.reduce_dtype}


@pytest.mark.parametrize(
    ("name", "param", "compute", "output", "scales"),
    [
        ("64-true", torch.float64, torch.float64, torch.float64, False),
        ("32-true", torch.float32, torch.float32, torch.float32, False),
        ("16-true", torch.float16, torch.float16, torch.float32, False),
        ("bf16-true", torch.bfloat16, torch.bfloat16, torch.float32, False),
        ("16-mixed", torch.float32, torch.float16, torch.float32, True),
        ("bf16-mixed", torch.float32, torch.bfloat16, torch.float32, False),
    ],
)
def test_declaration_is_what_the_name_says(
    name: str, param: torch.dtype, compute: torch.dtype, output: torch.dtype, scales: bool
) -> None:
    """Each name stands for the dtypes that the field means by it."""
    precision = precision_named(name)
    declared = (precision.param_dtype, precision.compute_dtype, precision.output_dtype, precision.scales_loss)
    assert declared == (param, compute, output, scales)
    assert precision.reduce_dtype is precision.buffer_dtype is param


@pytest.mark.parametrize("name", NAMES)
def test_a_module_in_another_dtype_is_converted(name: str) -> None:
    """What the module was made in does not change what the precision's name means; whole numbers stay whole."""
    precision = precision_named(name)
    for made in (torch.float16, torch.float64):
        module = nn.BatchNorm1d(3, dtype=made)
        precision.convert_module(module)
        assert module.weight.dtype is precision.param_dtype
        assert module.running_mean is not None
        assert module.running_mean.dtype is precision.buffer_dtype
        assert module.num_batches_tracked is not None
        assert module.num_batches_tracked.dtype is torch.int64


@pytest.mark.parametrize("name", NAMES)
def test_the_forward_context_leaves_nothing_behind(name: str) -> None:
    """The default dtype and autocast are as before after nested contexts, and after an exception in one."""
    precision = precision_named(name)
    inner = Net() if name.endswith("mixed") else Net().to(precision.param_dtype)
    with pytest.raises(ZeroDivisionError), precision.forward_context(), precision.forward_context():
        raise ZeroDivisionError
    with precision.forward_context():
        with precision.forward_context():
            pass
        inner(torch.ones(1, 6, dtype=precision.param_dtype))
        assert inner.dtypes == {"compute": precision.compute_dtype, "made": precision.param_dtype}
    assert torch.get_default_dtype() is torch.float32
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("name", ["64-true", "16-true", "bf16-true"])
def test_true_precisions_convert_floating_point_inputs_alone(name: str) -> None:
    """Nested inputs keep their structure; labels, masks and complex numbers keep their dtype."""
    precision = precision_named(name)
    data: dict[str, Any] = {"x": [torch.ones(2)], "y": torch.tensor([1]), "m": torch.tensor([True])}
    data["c"] = torch.ones(1, dtype=torch.complex64)
    converted = precision.convert_input(data)
    assert converted["x"][0].dtype is precision.param_dtype
    assert all(converted[key] is data[key] for key in "ymc")
    assert data["x"][0].dtype is torch.float32


@pytest.mark.parametrize("name", ["16-true", "bf16-true", "16-mixed", "bf16-mixed"])
def test_outputs_made_in_another_dtype_on_purpose_stay(name: str) -> None:
    """Only what the precision narrowed is widened again."""
    precision = precision_named(name)
    metric, labels = torch.ones(1, dtype=torch.float64), torch.tensor([1])
    narrow = torch.ones(1, dtype=precision.compute_dtype)
    output = precision.convert_output((narrow, metric, labels))
    assert output[0].dtype is torch.float32
    assert output[1] is metric
    assert output[2] is labels


def test_full_precision_costs_nothing_in_the_loop() -> None:
    """Of the hooks that run at each step, 32-true overrides none, so a runtime can leave them all out."""
    kind = type(precision_named("32-true"))
    at_each_step = ["forward_context", "convert_input", "convert_output", "backward", "optimizer_step"]
    at_each_step += ["unscale_gradients", "clip_gradients"]
    assert [hook for hook in at_each_step if getattr(kind, hook) is not getattr(Precision, hook)] == []


class WideSteps(HalfPrecision):
    """As a plugin writes it: bf16 parameters, stepped in float32; the optimizer state has what is rounded off."""

    state_dtype = torch.float32

    def __init__(self) -> None:
        super().__init__("bfloat16")
        self.state_dtype = torch.float32

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """No copies of the parameters."""

    def optimizer_step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        assert closure is None
        parameters = optimizer.param_groups[0]["params"]
        for parameter in parameters:
            gradient, parameter.grad = parameter.grad, None
            parameter.data = parameter.data.float() + optimizer.state[parameter].pop("rest", 0)
            parameter.grad = gradient.float()
            if not optimizer.state[parameter]:
                del optimizer.state[parameter]
        optimizer.step()
        for parameter in parameters:
            parameter.grad, exact = None, parameter.data
            parameter.data = exact.bfloat16()
            optimizer.state[parameter]["rest"] = exact - parameter.data.float()


@pytest.mark.parametrize("make", [WideSteps, lambda: HalfPrecision("bfloat16", state_dtype="float32")])
def test_loaded_state_is_in_the_declared_dtype(make: Callable[[], Precision]) -> None:
    """Of a plugin's precision as of core's own: a run that is resumed with Adam goes on to the same bits."""

    def run(state: Any, batches: list[tuple[Tensor, Tensor]]) -> Any:
        with Runtime(accelerator="cpu", devices=1, precision=make()) as runtime:
            net = runtime.prepare(net_of(state))
            optimizer = runtime.prepare(torch.optim.Adam(net.parameters(), lr=0.05))
            if state is not None:
                optimizer.load_state_dict(deepcopy(state[1]))
            for inputs, targets in batches:
                optimizer.zero_grad()
                runtime.backward(mse_loss(net(inputs), targets))
                optimizer.step()
            return deepcopy((net.state_dict(), optimizer.state_dict()))

    def net_of(state: Any) -> Net:
        net = fresh()[0]
        if state is not None:
            net.load_state_dict(state[0])
        return net

    batches = fresh()[1]
    whole, resumed = run(None, batches), run(run(None, batches[:3]), batches[3:])
    assert all(torch.equal(value, resumed[0][name]) for name, value in whole[0].items())
    for place, values in whole[1]["state"].items():
        for key, value in values.items():
            found = resumed[1]["state"][place][key]
            assert (found.dtype, found.tolist()) == (value.dtype, value.tolist()), key
