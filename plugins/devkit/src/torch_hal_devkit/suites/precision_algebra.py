"""T2 of precisions: contexts within each other, values that are kept, steps that are told, copies, and other states."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from torch_hal import Runtime
from torch_hal.errors import CoreError
from torch_hal.utilities.nested import map_tensors
from torch_hal_devkit import drawn
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.marks import skip_by_declaration, tier
from torch_hal_devkit.precision_problem import EXACT, Known, TwoGroups, exactness
from torch_hal_devkit.process_state import changes, draw, recorded, unusual
from torch_hal_devkit.suites.base import copied

__all__ = ["PrecisionAlgebraTests"]

_OF_A_PASS = ("default dtype", "settings of torch", "garbage collector", "settings of Python", "warnings filters")
_RATE = 0.5


class _Keeps(nn.Module):
    """Returns what it is given, and tensors of other dtypes that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Any) -> dict[str, Any]:
        """Outputs of several dtypes."""
        precise = torch.full((2,), 1 + 2.0**-40, dtype=torch.float64, device=self.weight.device)
        return {"given": inputs, "precise": precise, "count": torch.tensor(2**40 + 1), "truth": torch.tensor([True])}


class _Pair(NamedTuple):
    """A batch with names."""

    inputs: Tensor
    label: Any


class _Layers(nn.Module):
    """Layers with buffers of several dtypes, hooks and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.first.weight.requires_grad_(False)
        self.calls = 0
        self.note = {"text": "kept"}

    def forward(self, inputs: Tensor) -> Tensor:
        """Some numbers for each item."""
        output: Tensor = self.norm(self.first(inputs))
        return output


class PrecisionAlgebraTests:
    """Tests of tier T2."""

    @pytest.fixture
    def steps(self, runtime: Runtime) -> _Steps:
        """Steps of two weights with known gradients, in two groups of one optimizer."""
        return _Steps(runtime)

    # -- contexts ------------------------------------------------------------------------------------------------

    @tier("T2")
    @pytest.mark.parametrize("settings", ["usual", "unusual"])
    def test_forward_contexts_end_as_they_began(self, precision: Any, settings: str) -> None:
        """A forward context leaves what it found, within another one, after an exception, and when used again."""
        if settings == "unusual":
            with unusual():
                self._check_contexts(precision)
        else:
            self._check_contexts(precision)

    def _check_contexts(self, precision: Any) -> None:
        before = recorded(_OF_A_PASS)
        for fails in (False, True, False):
            try:
                with precision.forward_context():
                    outer = recorded(_OF_A_PASS)
                    with precision.forward_context():
                        pass
                    found = changes(outer, recorded(_OF_A_PASS))
                    assert not found, f"an inner forward context leaves in the outer one: {found}. Expected: no change"
                    try:
                        with precision.forward_context():
                            raise ZeroDivisionError("planted by the conformance kit")
                    except ZeroDivisionError:
                        found = changes(outer, recorded(_OF_A_PASS))
                        assert not found, f"an inner context that fails leaves {found}. Expected: no change"
                    else:
                        pytest.fail("a forward context hides an exception")
                    if fails:
                        raise ZeroDivisionError("planted by the conformance kit")
            except ZeroDivisionError:
                assert fails
            else:
                assert not fails, "a forward context hides an exception"
            found = changes(before, recorded(_OF_A_PASS))
            assert not found, f"a forward context leaves {found}. Expected: what it found"

    @tier("T2")
    def test_an_unusual_process_is_kept(self, arguments: dict[str, Any], runtime: Runtime) -> None:
        """A run in the precision, from ``connect`` to ``teardown``, keeps whatever the process has set and drawn."""
        del runtime  # it skips devices that run no single operations
        inputs = torch.tensor([0.25, -0.5, 1.0])
        with unusual():
            before = recorded()
            with torch.enable_grad(), Runtime(**arguments) as live:
                live.launch()
                precision = live.strategy.precision
                net = live.prepare(Known())
                optimizer = live.prepare(torch.optim.SGD(net.parameters(), lr=_RATE))
                draw()
                drawn_before = recorded(("random state",))
                live.backward(net(inputs.to(live.device)))
                optimizer.step()
                precision.load_state_dict(precision.state_dict())
            found = {**changes(before, recorded()), "random state": "", "devices in use": ""}
            found |= changes(drawn_before, recorded(("random state",)))
        left = {aspect: text for aspect, text in found.items() if text}
        assert not left, f"a process with unusual settings is changed: {left}. Expected: no change"

    # -- values --------------------------------------------------------------------------------------------------

    @tier("T2")
    def test_wide_outputs_stay_wide(self, runtime: Runtime, unsupported: Mapping[str, str], precision: Any) -> None:
        """What the module returns in float64, as integers or truth values comes out so, with every bit."""
        if "float64" in unsupported:
            skip_by_declaration(f"float64 is not supported: {unsupported['float64']}")
        labels = torch.tensor([3, 2**40], device=runtime.device)
        found = runtime.prepare(_Keeps())({"labels": labels, "text": "kept", "nothing": None})
        assert found["precise"].dtype is torch.float64, (
            f"an output in float64 comes out in {found['precise'].dtype}. Expected: torch.float64"
        )
        if not precision.rounding:
            assert found["precise"].tolist() == [1 + 2.0**-40] * 2, "an output in float64 is rounded"
        kept = (int(found["count"]), found["truth"].tolist(), found["given"]["labels"].tolist())
        assert kept == (2**40 + 1, [True], [3, 2**40]), f"integer outputs are {kept}"
        assert (found["given"]["text"], found["given"]["nothing"]) == ("kept", None)

    @tier("T2")
    @pytest.mark.parametrize("seed", drawn.SEEDS)
    def test_drawn_inputs_and_outputs(self, precision: Any, seed: int) -> None:
        """Conversion keeps structure, shapes and whatever is no floating point tensor, and is the same done twice."""
        draws = Random(seed)
        inner = {"a": [drawn.tensor(draws, torch.float32)]}, drawn.tensor(draws, torch.bool)
        pair = _Pair(drawn.tensor(draws, torch.float32), drawn.value(draws))
        values, tensors = [drawn.value(draws) for _ in range(4)], [drawn.tensor(draws) for _ in range(6)]
        for given in (pair, [pair], OrderedDict(a=inner, b=pair), inner, {"values": values, "tensors": tensors}):
            self._check_conversion(precision, given)

    def _check_conversion(self, precision: Any, given: Any) -> None:
        expected = copy.deepcopy(given)
        for name in ("convert_input", "convert_output"):
            convert = getattr(precision, name)
            once = convert(given)
            changed = drawn.same(given, expected)
            assert not changed, f"{name}() changes its argument: {changed}"
            for path, old, new in _pairs(given, once):
                if isinstance(old, Tensor) and old.is_floating_point():
                    assert (new.shape, new.device) == (old.shape, old.device), f"{name}(): {path} is {new}"
                    same = torch.allclose(new.double(), old.double(), rtol=0.0, atol=10 * precision.rounding)
                    assert same, f"{name}(): {path} is {new}. Expected: {old}"
                else:
                    difference = drawn.same(new, old, path)
                    assert not difference, f"{name}() changes what is no floating point tensor: {difference}"
            if not precision.rounding:
                difference = drawn.same(convert(once), once)
                assert not difference, f"{name}() of what it returned: {difference}"

    @tier("T2")
    def test_a_converted_module_is_whole(self, runtime: Runtime, precision: Any) -> None:
        """Conversion keeps parameters, buffers, hooks and attributes by name and order; done twice, it is the same."""
        net, expected = _Layers(), _Layers()
        net.first.register_forward_hook(lambda *_: setattr(net, "calls", net.calls + 1))
        converted = precision.convert_module(net)
        again = precision.convert_module(converted)
        assert [*again.state_dict()] == [*expected.state_dict()], f"the state has {[*again.state_dict()]}"
        names = [name for name, _ in again.named_buffers()]
        assert names == [name for name, _ in expected.named_buffers()], f"the buffers are {names}"
        frozen = {name: not weight.requires_grad for name, weight in again.named_parameters()}
        assert frozen == {name: name == "first.weight" for name in frozen}, f"frozen parameters are {frozen}"
        assert again.mask.dtype is torch.bool, f"a buffer of truth values is {again.mask.dtype}. Expected: torch.bool"
        assert again.note == {"text": "kept"}, f"an attribute of the module is {again.note}"
        again.eval().to(runtime.device)
        with precision.forward_context(), torch.no_grad():
            again(precision.convert_input(torch.ones(2, 3, device=runtime.device)))
        assert net.calls == 1, f"a forward hook is called {net.calls} times in a pass. Expected: once"

    @tier("T2")
    def test_the_scaled_loss_is_proportional(self, known: Any, precision: Any) -> None:
        """``scale_loss`` multiplies by one number, the scale, keeps sign and graph, and leaves its argument."""
        loss = known.prepared(torch.tensor([0.25, -0.5, 1.0], device=known.runtime.device))
        value = float(loss.detach())
        scaled, negative = precision.scale_loss(loss), precision.scale_loss(-loss)
        assert float(loss.detach()) == value, "scale_loss() changes its argument"
        assert scaled.requires_grad, "scale_loss() detaches the loss. Expected: a backward pass can begin there"
        factor = float(scaled.detach()) / value
        assert factor > 0, f"scale_loss() multiplies by {factor}. Expected: a positive number"
        assert float(negative.detach()) == -float(scaled.detach()), "scale_loss(-loss) is not -scale_loss(loss)"
        assert precision.scales_loss or factor == 1.0, f"scales_loss is False, but scale_loss() multiplies by {factor}"

    # -- steps ---------------------------------------------------------------------------------------------------

    @tier("T2")
    def test_a_skipped_step_is_told(self, steps: _Steps, precision: Any) -> None:
        """``step_was_skipped`` is True after a step with infinite gradients that was left out, and only then."""
        inner = steps.inner
        for factor, expected in (
            (1.0, False),
            (math.inf, precision.scales_loss),
            (1.0, False),
            (math.nan, precision.scales_loss),
        ):
            before = [weight.detach().clone() for weight in steps.net.parameters()]
            steps.backward(factor)
            steps.optimizer.step()
            steps.optimizer.zero_grad()
            found = [precision.step_was_skipped(inner) for _ in range(2)]
            assert found == [expected] * 2, (
                f"after a step with gradients times {factor}, step_was_skipped() returned {found}. Expected: {expected}"
            )
            taken = steps.runtime.strategy.steps_taken(inner)
            assert taken == int(not expected), f"after that step steps_taken() returned {taken}"
            moved = not all(torch.equal(a, b) for a, b in zip(before, steps.net.parameters(), strict=True))
            assert moved or factor != 1.0, "a step with finite gradients changes no weight"
            if not expected and factor != 1.0:
                return  # the weights are not finite any more

    @tier("T2")
    def test_each_optimizer_is_told_apart(self, runtime: Runtime, precision: Any) -> None:
        """Of two optimizers, a step of one that is left out is not told of the other, which takes its true step."""
        if not precision.scales_loss:
            skip_by_declaration("scales_loss is False")
        net = TwoGroups()
        prepared = runtime.prepare(net)
        inner = [torch.optim.SGD([weight], lr=_RATE) for weight in net.parameters()]
        optimizers = [runtime.prepare(one) for one in inner]
        runtime.backward(prepared(torch.ones(3, device=runtime.device), math.inf, 1.0))
        for optimizer in optimizers:
            optimizer.step()
        found = [precision.step_was_skipped(one) for one in inner]
        assert found == [True, False], f"infinite gradients of the first optimizer: steps skipped {found}"
        truth = TwoGroups()
        expected = truth.second.detach().double() - _RATE * truth.gradient("second")
        error = (net.second.detach().cpu().double() - expected).abs().max().item()
        assert error <= 4 * exactness(precision), (
            f"infinite gradients of the first optimizer: a step of the second makes {net.second.tolist()}. "
            f"Expected: {expected.tolist()}"
        )

    @tier("T2")
    def test_rates_and_groups_are_followed(self, steps: _Steps, precision: Any) -> None:
        """Steps use the rates that are set in the meantime, also of a group that is added, and their own momentum."""
        truth = TwoGroups().double()
        plain = torch.optim.SGD([truth.first], lr=_RATE)
        own = torch.optim.SGD([steps.net.first], lr=_RATE)
        optimizer: Any = steps.runtime.prepare(own)
        for number in range(4):
            for weights, step in ((truth, plain), (steps.net, optimizer)):
                if weights is truth:
                    truth(torch.ones(3, dtype=torch.float64)).backward()
                else:
                    steps.backward()
                step.step()
                weights.zero_grad()
                for group in step.param_groups:
                    group["lr"] *= 0.5
                if number == 1:
                    step.add_param_group({"params": [weights.second], "lr": 0.125})
        for name, weight in steps.net.named_parameters():
            error = (weight.detach().cpu().double() - truth.get_parameter(name).detach()).abs().max().item()
            assert error <= 8 * exactness(precision), (
                f"after steps with other rates and a further group, {name!r} is {weight.tolist()}. "
                f"Expected: {truth.get_parameter(name).tolist()}"
            )

    @tier("T2")
    def test_small_gradients_are_not_clipped(self, steps: _Steps, precision: Any) -> None:
        """Gradients below the limit stay, those above keep their direction; any iterable of parameters is taken."""
        steps.backward()
        precision.unscale_gradients(steps.inner)
        before = [weight.grad.clone() for weight in steps.net.parameters()]  # type: ignore[union-attr]
        for algorithm in ("norm", "value"):
            precision.clip_gradients(iter([*steps.net.parameters()]), 100.0, algorithm)
            after = [weight.grad for weight in steps.net.parameters()]
            pairs = zip(before, after, strict=True)
            assert all(torch.allclose(a, b, rtol=1e-6) for a, b in pairs if b is not None), (
                f"clipping by {algorithm} changes gradients below the limit: {after}. Expected: {before}"
            )
        precision.clip_gradients(iter([*steps.net.parameters()]), 0.125, "value")
        found = [weight.grad.tolist() for weight in steps.net.parameters()]  # type: ignore[union-attr]
        assert found == [[0.125] * 3, [-0.125] * 3], f"gradients clipped by value are {found}. Expected: signs are kept"
        for limit, algorithm in ((-1.0, "norm"), (-1.0, "value")):
            try:
                precision.clip_gradients(steps.net.parameters(), limit, algorithm)
            except CoreError:
                continue
            pytest.fail(f"clip_value={limit} by {algorithm} raised nothing. Expected: core.errors.ConfigurationError")
        precision.clip_gradients([], 1.0)
        steps.optimizer.step()

    @tier("T2")
    def test_a_step_is_taken_once(self, steps: _Steps, precision: Any) -> None:
        """A step calls the optimizer's own once, and its hooks; gradients of later passes add up from zero."""
        calls: list[int] = []
        steps.inner.register_step_post_hook(lambda *_: calls.append(1))
        for _ in range(3):
            steps.backward()
            steps.optimizer.step()
            steps.optimizer.zero_grad()
        assert len(calls) == 3, f"three steps call the optimizer's hook {len(calls)} times. Expected: 3"
        steps.backward()
        precision.unscale_gradients(steps.inner)
        for name, weight in steps.net.named_parameters():
            gradient = weight.grad
            assert gradient is not None, f"no gradient of {name!r}"
            error = (gradient.cpu().double() - steps.net.gradient(name)).abs().max().item()
            assert error <= exactness(precision), f"after zero_grad(), the gradient of {name!r} is off by {error:.3g}"
        steps.optimizer.step()

    @tier("T2")
    def test_after_an_error_it_goes_on(self, steps: _Steps, precision: Any) -> None:
        """After a backward pass that raises, and a clipping that is refused, steps are those of true gradients."""
        for wrong in (torch.ones(3, device=steps.runtime.device), torch.tensor(1.0, device=steps.runtime.device)):
            try:
                steps.runtime.backward(wrong)
            except Exception:  # noqa: BLE001  torch's own, or core's that explains it
                continue
            pytest.fail("backward() of a tensor without a graph raised nothing. Expected: an exception")
        steps.backward()
        with suppress(CoreError):
            precision.clip_gradients(steps.net.parameters(), 1.0, "sum")
        steps.optimizer.step()
        truth = TwoGroups()
        for name, weight in steps.net.named_parameters():
            expected = truth.get_parameter(name).detach().double() - _RATE * truth.gradient(name)
            error = (weight.detach().cpu().double() - expected).abs().max().item()
            assert error <= 4 * exactness(precision), f"after errors, a step makes {name!r} {weight.tolist()}"

    # -- state and copies ----------------------------------------------------------------------------------------

    @tier("T2")
    def test_its_state_is_its_own(self, steps: _Steps, precision: Any) -> None:
        """A state is a snapshot: later steps do not change it; loading it again, in any order, goes on from there."""
        first = precision.state_dict()
        shown = repr(_plain(first))
        for factor in (math.inf, 1.0, math.inf, 1.0) if precision.scales_loss else (1.0,):
            steps.backward(factor)
            steps.optimizer.step()
            steps.optimizer.zero_grad()
        assert repr(_plain(first)) == shown, "steps change what state_dict() returned before. Expected: a snapshot"
        later = repr(_plain(precision.state_dict()))
        for _ in range(2):
            precision.load_state_dict(first)
            found = repr(_plain(precision.state_dict()))
            assert found == shown, f"after load_state_dict() the state is {found}. Expected: {shown}"
        assert repr(_plain(first)) == shown, "load_state_dict() changes its argument"
        assert later != shown or not precision.scales_loss, "steps that are left out do not change the state"

    @tier("T2")
    @pytest.mark.parametrize("how", ["pickled", "copied"])
    def test_a_copy_of_it_works(self, backend: BackendUnderTest, runtime: Runtime, how: str) -> None:
        """A pickled or deeply copied instance, as a started process gets one, declares and converts the same."""
        made = backend.create()
        other: Any = copied(made, how)
        fields = [f"{what}_dtype" for what in ("param", "compute", "reduce", "buffer", "output", "state")]
        fields += ["name", "scales_loss", "rounding", "keep_float32"]
        found, expected = ({name: getattr(one, name) for name in fields} for one in (other, made))
        assert found == expected, f"a {how} instance declares {found}. Expected: {expected}"
        kind = runtime.strategy.accelerator.autocast_device_type(runtime.device)
        other.connect(kind)
        layer = other.convert_module(nn.Linear(3, 1)).to(runtime.device)
        with other.forward_context():
            output = other.convert_output(layer(other.convert_input(torch.ones(2, 3, device=runtime.device))))
        assert output.dtype is made.output_dtype, f"the outputs of a {how} instance are {output.dtype}"
        other.teardown()
        other.teardown()

    @tier("T2")
    def test_instances_are_independent(
        self, backend: BackendUnderTest, runtime: Runtime, precision: Any, steps: _Steps
    ) -> None:
        """Another instance that is created, connected and torn down meanwhile changes nothing of the first one."""
        state = repr(_plain(precision.state_dict()))
        other: Any = backend.create()
        other.connect(runtime.strategy.accelerator.autocast_device_type(runtime.device))
        other.convert_module(nn.Linear(2, 2))
        other.teardown()
        assert repr(_plain(precision.state_dict())) == state, "another instance changes the first one's state"
        steps.backward()
        steps.optimizer.step()
        truth = TwoGroups()
        for name, weight in steps.net.named_parameters():
            expected = truth.get_parameter(name).detach().double() - _RATE * truth.gradient(name)
            error = (weight.detach().cpu().double() - expected).abs().max().item()
            assert error <= 4 * EXACT[min((torch.bfloat16, precision.param_dtype), key=EXACT.__getitem__)] + 0.02, (
                f"after another instance was used, a step makes {name!r} {weight.tolist()}. Expected: {expected}"
            )


class _Steps:
    """Backward passes and steps of :class:`TwoGroups`, whose gradients are known."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.net = TwoGroups()
        self.prepared: nn.Module = runtime.prepare(self.net)
        self.inner = torch.optim.SGD([{"params": [self.net.first]}, {"params": [self.net.second]}], lr=_RATE)
        self.optimizer: Any = runtime.prepare(self.inner)

    def backward(self, factor: float = 1.0) -> None:
        self.runtime.backward(self.prepared(torch.ones(3, device=self.runtime.device), factor, factor))


def _plain(state: Any) -> Any:
    """``state`` with numbers in place of tensors."""
    return map_tensors(lambda tensor: (str(tensor.dtype), tensor.tolist()), state)


def _pairs(given: Any, found: Any, path: str = "it") -> list[tuple[str, Any, Any]]:
    """The leaves of two nested structures, side by side."""
    if type(found) is not type(given) and not isinstance(given, Tensor):
        return [(path, given, found)]
    if isinstance(given, dict) and [*given] == [*found]:
        return [pair for key in given for pair in _pairs(given[key], found[key], f"{path}[{key!r}]")]
    if isinstance(given, list | tuple) and len(given) == len(found):
        pairs = enumerate(zip(given, found, strict=True))
        return [pair for i, (one, other) in pairs for pair in _pairs(one, other, f"{path}[{i}]")]
    return [(path, given, found)]
