"""T2 of precisions: what a precision leaves as the user has set it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from torch_hal import Runtime
from torch_hal.errors import CoreError
from torch_hal_devkit.marks import skip_by_declaration, tier
from torch_hal_devkit.precision_problem import Known, exactness
from torch_hal_devkit.process_state import settings_of_torch

__all__ = ["PrecisionKeepsTests"]

_RATE = 0.5


class _Pair(NamedTuple):
    left: Tensor
    right: Any


class _Tied(nn.Module):
    """Two layers of one weight, and a frozen layer in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode, self.frozen = (nn.Linear(3, 3, bias=False) for _ in range(3))
        self.decode.weight = self.encode.weight
        self.frozen.requires_grad_(False)
        self.frozen.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """One number."""
        output: Tensor = self.decode(self.frozen(self.encode(inputs))).sum()
        return output


class _Takes(nn.Module):
    """Notes its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.given: list[Any] = []

    def forward(self, inputs: Any) -> Tensor:
        """One number."""
        self.given.append(inputs)
        return self.weight * 2.0


class PrecisionKeepsTests:
    """Tests of tier T2."""

    # -- modules -------------------------------------------------------------------------------------------------

    @tier("T2")
    def test_frozen_parameters_stay_frozen(self, runtime: Runtime) -> None:
        """A parameter with ``requires_grad=False`` has it after ``prepare``, and keeps its value in a step."""
        net, *steps = _tied(runtime)
        before = net.frozen.weight.detach().clone()
        _step(runtime, *steps)
        assert not net.frozen.weight.requires_grad, "prepare() makes a frozen parameter trainable"
        assert net.encode.weight.requires_grad, "prepare() freezes a trainable parameter"
        assert torch.equal(net.frozen.weight.detach(), before), "a step changes a frozen parameter"

    @tier("T2")
    def test_each_layer_keeps_its_mode(self, runtime: Runtime) -> None:
        """A layer in evaluation mode stays in it, and the others in training mode, through ``prepare`` and a step."""
        net, *steps = _tied(runtime)
        for when in ("prepare()", "a step"):
            modes = {name: layer.training for name, layer in net.named_children()}
            expected = {"encode": True, "decode": True, "frozen": False}
            assert modes == expected, f"after {when} layers are in training mode: {modes}. Expected: {expected}"
            _step(runtime, *steps)

    @tier("T2")
    def test_tied_parameters_stay_tied(self, runtime: Runtime) -> None:
        """A parameter of two layers is one parameter after ``prepare`` and a step."""
        net, *steps = _tied(runtime)
        _step(runtime, *steps)
        encode, decode = net.encode.weight, net.decode.weight
        assert encode is decode, "a parameter that two layers share is two parameters after prepare()"

    @tier("T2")
    def test_torch_keeps_its_settings(self, runtime: Runtime) -> None:
        """``prepare`` and a step leave torch's global settings as they are."""
        before = {"default dtype": torch.get_default_dtype(), **settings_of_torch()}
        _, *steps = _tied(runtime)
        _step(runtime, *steps)
        after = {"default dtype": torch.get_default_dtype(), **settings_of_torch()}
        torch.set_float32_matmul_precision(before["float32 matmul precision"])  # for the next test
        assert after == before, f"torch's settings are {after} after a step. Expected: {before}"

    # -- inputs --------------------------------------------------------------------------------------------------

    @tier("T2")
    def test_inputs_are_left_as_they_are(self, runtime: Runtime) -> None:
        """A forward pass changes neither the user's containers nor their tensors."""
        tensors = [torch.full((2,), 1 + 2**-20, device=runtime.device) for _ in range(2)]
        inputs: dict[str, Any] = {"list": [tensors[0]], "tensor": tensors[1]}
        runtime.prepare(_Takes())(inputs)
        same = inputs["list"][0] is tensors[0] and inputs["tensor"] is tensors[1]
        assert same, "a forward pass replaces tensors in the user's own list or dict. Expected: a copy"
        found = [tensor.tolist() for tensor in tensors]
        assert found == [[1 + 2**-20] * 2] * 2, f"a forward pass changes its inputs to {found}"

    @tier("T2")
    def test_inputs_keep_their_structure(self, runtime: Runtime) -> None:
        """Named tuples, nested containers and the order of keys reach the module as they are given."""
        tensor = torch.ones(2, device=runtime.device)
        module = _Takes()
        runtime.prepare(module)(_Pair(tensor, {"z": [tensor], "a": (tensor, None)}))
        (found,) = module.given
        assert type(found) is _Pair, f"a named tuple reaches the module as a {type(found).__name__}"
        shown = [*found.right], type(found.right["z"]), type(found.right["a"])
        assert shown == (["z", "a"], list, tuple), f"a nested input reaches the module as {shown}"

    @tier("T2")
    def test_complex_inputs_stay_complex(self, runtime: Runtime) -> None:
        """Complex tensors reach the module as complex tensors of the same values."""
        try:
            given = torch.tensor([1 + 2j, -0.5j], device=runtime.device)
            expected = given.cpu().tolist()
        except (RuntimeError, TypeError, NotImplementedError) as error:
            skip_by_declaration(f"no complex tensors on this device: {error}")
        module = _Takes()
        runtime.prepare(module)(given)
        (found,) = module.given
        assert found.is_complex(), f"a complex input reaches the module as {found.dtype}"
        assert found.cpu().tolist() == expected, f"a complex input reaches the module as {found.tolist()}"

    # -- gradients -----------------------------------------------------------------------------------------------

    @tier("T2")
    def test_backward_takes_torchs_arguments(self, runtime: Runtime, precision: Any) -> None:
        """``backward`` heeds ``retain_graph=`` and ``gradient=``, as a tensor's own does; or refuses them by name."""
        inputs = torch.tensor([0.25, -0.5, 1.0], device=runtime.device)
        _, prepared, optimizer = _known(runtime)
        loss = prepared(inputs)
        _backward(runtime, loss, "retain_graph", retain_graph=True)
        try:
            runtime.backward(loss)
        except RuntimeError as error:
            raise AssertionError(f"a second backward pass after backward(retain_graph=True) raises {error}") from error
        _backward(runtime, prepared(inputs), "gradient", gradient=torch.tensor(3.0, device=runtime.device))
        precision.unscale_gradients(optimizer)
        (gradient,) = (weight.grad for weight in prepared.parameters())
        assert gradient is not None, "backward() computes no gradient"
        expected = 5 * inputs.cpu().double()  # two passes of one graph, and one with the factor 3
        difference = (gradient.detach().cpu().double() - expected).abs().max().item()
        assert difference <= 5 * exactness(precision), (
            f"after backward(retain_graph=True), another pass and backward(gradient=3), the gradient is "
            f"{gradient.tolist()}. Expected: {expected.tolist()}"
        )

    @tier("T2")
    @pytest.mark.parametrize("norm_type", [1.0, math.inf])
    def test_other_norms(self, runtime: Runtime, precision: Any, norm_type: float) -> None:
        """``clip_grad_norm_`` heeds ``norm_type``, or refuses it by name."""
        net, prepared, _ = _known(runtime)
        inputs = torch.tensor([0.25, -0.5, 1.0], device=runtime.device)
        runtime.backward(prepared(inputs))
        try:
            found = runtime.clip_grad_norm_(net.parameters(), 100.0, norm_type)
        except CoreError as error:
            if "norm_type" not in str(error):
                raise
            skip_by_declaration(str(error))
        expected = torch.linalg.vector_norm(inputs.cpu().double(), norm_type).item()
        assert found is not None, "clip_grad_norm_ returned None. Expected: the norm before clipping"
        assert float(found) == pytest.approx(expected, rel=exactness(precision)), (
            f"with norm_type={norm_type} the norm is {float(found)}. Expected: {expected}"
        )

    @tier("T2")
    def test_gradients_stay_after_a_step(self, runtime: Runtime) -> None:
        """A step leaves gradients to ``zero_grad``: a user logs them, or accumulates on."""
        net, prepared, optimizer = _known(runtime)
        runtime.backward(prepared(torch.ones(3, device=runtime.device)))
        optimizer.step()
        (weight,) = net.parameters()
        assert weight.grad is not None, "a step removes gradients. Expected: only zero_grad() does"
        assert weight.grad.count_nonzero() == 3, "a step sets gradients to zero. Expected: only zero_grad() does"

    @tier("T2")
    def test_gradients_are_added_where_they_were(self, runtime: Runtime) -> None:
        """A step leaves each parameter's place in torch's graph, where DistributedDataParallel averages gradients."""
        net, prepared, optimizer = _known(runtime)
        (weight,) = net.parameters()
        before = _accumulator(weight)
        runtime.backward(prepared(torch.ones(3, device=runtime.device)))
        optimizer.step()
        assert _accumulator(weight) is before, (
            "after a step, torch adds a parameter's gradients in another place, and DistributedDataParallel does not "
            "average them any more. Expected: a step gives no parameter's data another dtype. "
            "core.precisions.wide_copies lets the optimizer step copies"
        )

    @tier("T2")
    def test_gradients_that_are_not_finite_are_seen(self, runtime: Runtime, precision: Any) -> None:
        """Unless it scales the loss, a step with NaN in a gradient is not made into another step in silence."""
        if precision.scales_loss:
            skip_by_declaration("scales_loss is True: such a step is left out")
        net, prepared, optimizer = _known(runtime)
        runtime.backward(prepared(torch.tensor([1.0, math.nan, 1.0], device=runtime.device)))
        try:
            optimizer.step()
        except (RuntimeError, ValueError, ArithmeticError):
            return
        (weight,) = net.parameters()
        assert weight.detach().isnan().any(), (
            f"a step with the gradients [1, nan, 1] gives the weights {weight.tolist()}. Expected: NaN, or an exception"
        )


def _tied(runtime: Runtime) -> tuple[_Tied, nn.Module, Any]:
    net = _Tied()
    prepared, optimizer = runtime.prepare(net, torch.optim.SGD(net.parameters(), lr=_RATE))
    return net, prepared, optimizer


def _step(runtime: Runtime, prepared: nn.Module, optimizer: Any) -> None:
    runtime.backward(prepared(torch.ones(2, 3, device=runtime.device)))
    optimizer.step()
    optimizer.zero_grad()


def _known(runtime: Runtime) -> tuple[Known, nn.Module, Any]:
    net = Known()
    prepared, optimizer = runtime.prepare(net, torch.optim.SGD(net.parameters(), lr=_RATE))
    return net, prepared, optimizer


def _accumulator(parameter: Tensor) -> Any:
    function = parameter.expand_as(parameter).grad_fn
    assert function is not None, "the parameter takes no gradients"
    return function.next_functions[0][0]


def _backward(runtime: Runtime, loss: Tensor, argument: str, **options: Any) -> None:
    try:
        runtime.backward(loss, **options)
    except CoreError as error:
        if argument not in str(error):
            raise
        skip_by_declaration(str(error))
