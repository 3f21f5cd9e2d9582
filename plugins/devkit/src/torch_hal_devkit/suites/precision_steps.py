"""T2 of precisions: evaluation, several groups of parameters, closures, and nested outputs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from torch_hal import Runtime, Trainer
from torch_hal.errors import CoreError
from torch_hal_devkit import problem
from torch_hal_devkit.marks import skip_by_declaration, tier
from torch_hal_devkit.precision_problem import Outputs, Probe, TwoGroups, exactness

__all__ = ["PrecisionStepTests"]

_RATES = (0.5, 0.25)


class PrecisionStepTests:
    """Tests of tier T2."""

    @pytest.fixture
    def groups(self, runtime: Runtime) -> _Groups:
        """Two weights with known gradients, in two groups of one optimizer."""
        return _Groups(runtime)

    # -- evaluation ----------------------------------------------------------------------------------------------

    @tier("T2")
    def test_evaluation_is_in_the_declared_dtype(self, runtime: Runtime, precision: Any) -> None:
        """In evaluation mode without gradients, products and outputs have the declared dtypes, as in training."""
        probe = Probe()
        prepared = runtime.prepare(probe)
        prepared.eval()
        with torch.no_grad():
            output = prepared({"inputs": torch.ones(2, 4, device=runtime.device), "labels": _labels(runtime)})
        found = probe.computed[0], output["product"].dtype
        expected = precision.compute_dtype, precision.output_dtype
        assert found == expected, (
            f"in evaluation mode (compute, output) dtypes are {found}. Expected: the declared ones, {expected}"
        )

    @tier("T2")
    @pytest.mark.parametrize("stage", ["validate", "predict"])
    def test_a_stage_is_in_the_declared_dtype(self, arguments: dict[str, Any], precision_of: Any, stage: str) -> None:
        """The Trainer's ``validate`` and ``predict`` compute in ``compute_dtype``."""
        module = problem.Classifier()
        computed: list[torch.dtype] = []
        module.net[0].register_forward_hook(lambda _module, _inputs, output: computed.append(output.dtype))  # type: ignore[index]
        trainer = Trainer(**{**problem.OPTIONS, **arguments})
        getattr(trainer, stage)(module, DataLoader(problem.data(), batch_size=32))
        assert set(computed) == {precision_of.compute_dtype}, (
            f"in {stage}() a linear layer returned {set(computed)}. Expected: {precision_of.compute_dtype}"
        )

    # -- inputs and outputs --------------------------------------------------------------------------------------

    @tier("T2")
    def test_keyword_arguments_are_converted(self, runtime: Runtime, precision: Any) -> None:
        """Floating point tensors in keyword arguments, lists and tuples reach the module as positional ones do."""
        module = Outputs()
        prepared = runtime.prepare(module)
        inputs = torch.ones(2, 4, device=runtime.device)
        prepared([inputs, (inputs, "text", None)], more={"inputs": inputs, "labels": _labels(runtime)})
        assert len(set(module.given)) == 1, f"inputs of one call have the dtypes {module.given}. Expected: one dtype"
        assert module.others == ["text", None, torch.int64], f"other inputs became {module.others}"

    @tier("T2")
    def test_each_output_has_gradients(self, runtime: Runtime, precision: Any) -> None:
        """A backward pass from any output, however nested, reaches the parameters and the input that it depends on."""
        for which in ("first", "second", "third"):
            module = Outputs()
            prepared = _prepared(runtime, module)
            inputs = torch.ones(2, 4, device=runtime.device, requires_grad=True)
            output = prepared([inputs, (inputs, "text", None)], more={"labels": _labels(runtime)})
            chosen = {"first": output["first"], "second": output["pair"][0], "third": output["pair"][1][0]}[which]
            assert chosen.requires_grad, f"the {which} output is detached. Expected: a backward pass can begin there"
            assert chosen.dtype == precision.output_dtype, f"the {which} output is {chosen.dtype}"
            runtime.backward(chosen.mean())
            weight = getattr(module, which).weight
            assert weight.grad is not None, f"a backward pass from the {which} output does not reach its parameters"
            assert weight.grad.abs().sum() > 0, (
                f"a backward pass from the {which} output gives its parameters only zeros"
            )
            assert inputs.grad is not None, f"a backward pass from the {which} output does not reach the input"
            assert inputs.grad.dtype == inputs.dtype, f"the input's gradient is {inputs.grad.dtype}"

    @tier("T2")
    def test_a_pass_draws_no_random_numbers(self, runtime: Runtime) -> None:
        """A pass draws no random numbers, and leaves train mode and grad mode as they are."""
        module = Outputs()
        prepared = _prepared(runtime, module)
        prepared.train()
        before = torch.get_rng_state()
        inputs = torch.ones(2, 4, device=runtime.device)
        output = prepared([inputs, (inputs, "", None)], more={})["first"]
        enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)  # whatever the precision does, the next test begins as usual
        assert enabled, "a forward pass leaves gradients disabled"
        runtime.backward(output.mean())
        assert torch.equal(torch.get_rng_state(), before), "a pass changes the host's random state. Expected: no change"
        assert module.training, "a pass leaves the module in evaluation mode"
        assert torch.is_grad_enabled(), "a backward pass leaves gradients disabled"

    # -- groups and optimizers -----------------------------------------------------------------------------------

    @tier("T2")
    def test_each_group_is_stepped(self, groups: _Groups, precision: Any) -> None:
        """Each group of parameters takes a step of its true gradients, at its own rate."""
        groups.backward()
        groups.optimizer.step()
        groups.check("the weights after a step", groups.expected(1), precision)

    @tier("T2")
    def test_each_group_is_unscaled(self, groups: _Groups, precision: Any) -> None:
        """``unscale_gradients`` unscales the gradients of all groups of the optimizer."""
        groups.backward()
        precision.unscale_gradients(groups.inner)
        for name, weight in groups.net.named_parameters():
            assert weight.grad is not None, f"no gradient of {name!r}"
            error = (weight.grad.detach().cpu().double() - groups.net.gradient(name)).abs().max().item()
            assert error <= exactness(precision), f"the unscaled gradient of {name!r} is off by {error:.3g}"

    @tier("T2")
    @pytest.mark.parametrize("name", ["first", "second"])
    def test_an_overflow_in_any_group(self, groups: _Groups, precision: Any, name: str) -> None:
        """Infinite gradients in any one group leave out the step of all."""
        if not precision.scales_loss:
            skip_by_declaration("scales_loss is False")
        before = [weight.detach().clone() for weight in groups.net.parameters()]
        groups.backward(**{name: math.inf})
        groups.optimizer.step()
        for old, (other, weight) in zip(before, groups.net.named_parameters(), strict=True):
            assert torch.equal(weight.detach(), old), (
                f"infinite gradients of {name!r}: a step changes {other!r} to {weight.tolist()}. "
                f"Expected: {old.tolist()}"
            )

    @tier("T2")
    def test_an_optimizer_made_before(self, runtime: Runtime, precision: Any) -> None:
        """An optimizer that was made before the module was prepared trains the prepared module."""
        net = TwoGroups()
        optimizer = torch.optim.SGD(net.parameters(), lr=_RATES[0])
        prepared, optimizer = runtime.prepare(net, optimizer)
        before = [weight.detach().clone() for weight in net.parameters()]
        runtime.backward(prepared(torch.ones(3, device=runtime.device)))
        optimizer.step()
        for old, (name, weight) in zip(before, net.named_parameters(), strict=True):
            assert not torch.equal(old, weight.detach()), (
                f"a step of an optimizer made before prepare() leaves {name!r}"
            )

    @tier("T2")
    def test_parameters_without_gradients(self, groups: _Groups, precision: Any) -> None:
        """A parameter that the loss does not depend on keeps its value, and does not disturb the others."""
        before = groups.net.second.detach().clone()
        groups.backward(second=None)
        groups.optimizer.step()
        assert torch.equal(groups.net.second.detach(), before), "a step changes a parameter without a gradient"
        assert not torch.equal(groups.net.first.detach().cpu(), TwoGroups().first.detach()), "a step changes nothing"

    @tier("T2")
    def test_two_optimizers(self, runtime: Runtime, precision: Any) -> None:
        """Two optimizers that are stepped after one backward pass both use true gradients."""
        net = TwoGroups()
        prepared = runtime.prepare(net)
        steps = [
            runtime.prepare(torch.optim.SGD([weight], lr=rate))
            for weight, rate in zip(net.parameters(), _RATES, strict=True)
        ]
        for _ in range(2):
            runtime.backward(prepared(torch.ones(3, device=runtime.device)))
            for optimizer in steps:
                optimizer.step()
                optimizer.zero_grad()
        _check(net, "the weights after two steps of two optimizers", _expected(2), precision)

    @tier("T2")
    def test_a_step_with_a_closure(self, runtime: Runtime, groups: _Groups, precision: Any) -> None:
        """``optimizer.step(closure)`` calls the closure and returns its loss; or is refused by name."""
        losses: list[Tensor] = []

        def closure() -> Tensor:
            groups.optimizer.zero_grad()
            loss: Tensor = groups.prepared(torch.ones(3, device=runtime.device))
            runtime.backward(loss)
            losses.append(loss.detach())
            return loss

        try:
            returned = groups.optimizer.step(closure)
        except CoreError as error:
            if not precision.scales_loss or "closure" not in str(error):
                raise
            skip_by_declaration(str(error))
        assert losses, "optimizer.step(closure) does not call the closure"
        assert returned is not None, "optimizer.step(closure) returned None. Expected: the closure's loss"
        value = float(returned.detach())
        assert value == float(losses[0]), f"step(closure) returned {value}. Expected: {losses[0]}"
        groups.check("the weights after a step with a closure", groups.expected(1), precision)


class _Groups:
    """Backward passes and steps of :class:`TwoGroups`."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.net = TwoGroups()
        self.prepared: nn.Module = runtime.prepare(self.net)
        parameters = zip(self.net.parameters(), _RATES, strict=True)
        self.inner = torch.optim.SGD([{"params": [weight], "lr": rate} for weight, rate in parameters])
        self.optimizer: Any = runtime.prepare(self.inner)

    def backward(self, first: float | None = 1.0, second: float | None = 1.0) -> None:
        self.runtime.backward(self.prepared(torch.ones(3, device=self.runtime.device), first, second))

    def expected(self, steps: int) -> dict[str, Tensor]:
        return _expected(steps)

    def check(self, what: str, expected: dict[str, Tensor], precision: Any) -> None:
        _check(self.net, what, expected, precision)


def _expected(steps: int) -> dict[str, Tensor]:
    net = TwoGroups()
    return {
        name: weight.detach().double() - steps * rate * net.gradient(name)
        for (name, weight), rate in zip(net.named_parameters(), _RATES, strict=True)
    }


def _check(net: nn.Module, what: str, expected: dict[str, Tensor], precision: Any) -> None:
    for name, weight in net.named_parameters():
        error = (weight.detach().cpu().double() - expected[name]).abs().max().item()
        assert error <= 4 * exactness(precision), (
            f"{what}: {name!r} is {weight.tolist()}. Expected: {expected[name].tolist()}"
        )


def _prepared(runtime: Runtime, module: nn.Module) -> nn.Module:
    """The module, prepared with an optimizer: scaled gradients need one that unscales them."""
    prepared: nn.Module = runtime.prepare(module, torch.optim.SGD(module.parameters(), lr=_RATES[0]))[0]
    return prepared


def _labels(runtime: Runtime) -> Tensor:
    return torch.tensor([1, 2], device=runtime.device)
