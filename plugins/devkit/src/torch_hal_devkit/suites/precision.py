"""The suite of precisions."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from torch_hal import Request, Runtime, Trainer, resolve
from torch_hal.errors import CoreError
from torch_hal.utilities.nested import map_tensors
from torch_hal_devkit import problem
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.marks import skip_by_declaration, tier
from torch_hal_devkit.precision_problem import Known, Probe, exactness
from torch_hal_devkit.suites.accelerator import counted, present_accelerator
from torch_hal_devkit.suites.base import Suite
from torch_hal_devkit.suites.importing import ImportTests
from torch_hal_devkit.suites.metadata import MetadataTests
from torch_hal_devkit.suites.precision_algebra import PrecisionAlgebraTests
from torch_hal_devkit.suites.precision_keeps import PrecisionKeepsTests
from torch_hal_devkit.suites.precision_steps import PrecisionStepTests

__all__ = ["PrecisionSuite"]

_DTYPES = ("param_dtype", "compute_dtype", "reduce_dtype", "buffer_dtype", "output_dtype")

_TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""By ``compute_dtype``: the tolerance of the losses, from 1.2 to 0.3, compared with the CPU in float32."""

_ROUNDED, _AT_MOST = 25, 0.5
"""The tolerance of a precision that rounds: this multiple of ``rounding``, as for bfloat16, up to a limit."""

_INPUTS = [0.25, -0.5, 1.0]
_RATE = 0.5
_LIMIT = 0.375


class PrecisionSuite(MetadataTests, ImportTests, PrecisionStepTests, PrecisionKeepsTests, PrecisionAlgebraTests, Suite):
    """The conformance suite of precisions."""

    kind: ClassVar[str] = "precision"

    @pytest.fixture
    def accelerator(self, backend: BackendUnderTest) -> BackendUnderTest:
        """The accelerator of the tests: that of ``"auto"``."""
        return present_accelerator(backend)

    @pytest.fixture
    def unsupported(self, accelerator: BackendUnderTest) -> Mapping[str, str]:
        """The accelerator's own declaration."""
        unsupported: Mapping[str, str] = accelerator.load().unsupported
        return unsupported

    @pytest.fixture
    def devices(self, accelerator: BackendUnderTest) -> int | None:
        """The number that the accelerator counts."""
        return counted(accelerator)

    @pytest.fixture(autouse=True)
    def _default_dtype(self) -> Iterator[None]:
        """Restore the default dtype, so that a failure does not affect the next test."""
        yield
        torch.set_default_dtype(torch.float32)

    @pytest.fixture
    def arguments(self, backend: BackendUnderTest, accelerator: BackendUnderTest) -> dict[str, Any]:
        """The arguments of a front end; skips the test if the accelerator declares what they need as unsupported."""
        arguments: dict[str, Any] = {"accelerator": accelerator.name, "devices": 1, "precision": backend.name}
        try:
            resolve(Request.read(environ=backend.environ, **arguments), backend.registry)
        except CoreError as error:
            if not accelerator.load().unsupported:
                raise
            skip_by_declaration(str(error))
        return arguments

    @pytest.fixture
    def runtime(self, arguments: dict[str, Any], unsupported: Mapping[str, str]) -> Any:
        """A Runtime in the precision."""
        if "eager" in unsupported:
            skip_by_declaration(f"eager is not supported: {unsupported['eager']}")
        live = Runtime(**arguments)
        live.launch()
        assert live.strategy.precision.name == arguments["precision"]
        yield live
        live.teardown()

    @pytest.fixture
    def precision(self, runtime: Runtime) -> Any:
        """The precision, connected to a device."""
        return runtime.strategy.precision

    @pytest.fixture
    def run_probe(self, runtime: Runtime) -> Callable[..., tuple[Probe, Any]]:
        """Prepares a :class:`Probe` and runs it; returns the probe and its output."""

        def run() -> tuple[Probe, Any]:
            probe = Probe()
            prepared = runtime.prepare(probe)
            return probe, prepared(_batch(runtime.device))

        return run

    @pytest.fixture
    def known(self, runtime: Runtime) -> _KnownStep:
        """A module whose gradients are known, with an optimizer."""
        return _KnownStep(runtime)

    # -- the declaration -----------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("field", _DTYPES)
    def test_the_declaration_is_of_dtypes(self, backend: BackendUnderTest, field: str) -> None:
        """Each declared dtype is a floating point :class:`torch.dtype`."""
        dtype = getattr(backend.create(), field)
        assert isinstance(dtype, torch.dtype), f"{field}={dtype!r}. Expected: a torch.dtype"
        assert dtype.is_floating_point, f"{field}={dtype!r}. Expected: a floating point dtype"

    @tier("T1")
    def test_scales_loss_is_a_bool(self, backend: BackendUnderTest) -> None:
        """``scales_loss`` is a bool."""
        scales = backend.create().scales_loss
        assert isinstance(scales, bool), f"scales_loss={scales!r}. Expected: True or False"

    @tier("T2")
    def test_parameters_are_of_the_declared_dtype(self, run_probe: Any, precision: Any) -> None:
        """Prepared parameters are in ``param_dtype``."""
        probe, _ = run_probe()
        _check_dtypes("parameters", [p.dtype for p in probe.parameters()], precision, "param_dtype")

    @tier("T2")
    def test_buffers_are_of_the_declared_dtype(self, run_probe: Any, precision: Any) -> None:
        """Prepared floating point buffers are in ``buffer_dtype``, and others unchanged."""
        probe, _ = run_probe()
        _check_dtypes("the floating point buffer", [probe.scale.dtype], precision, "buffer_dtype")
        assert probe.seen.dtype == torch.int64, f"an integer buffer is {probe.seen.dtype}. Expected: torch.int64"

    @tier("T2")
    def test_products_are_computed_in_the_declared_dtype(self, run_probe: Any, precision: Any) -> None:
        """A linear layer in the forward pass returns ``compute_dtype``."""
        probe, _ = run_probe()
        _check_dtypes("the output of a linear layer", probe.computed, precision, "compute_dtype")

    @tier("T2")
    def test_outputs_are_of_the_declared_dtype(self, run_probe: Any, precision: Any) -> None:
        """Floating point outputs, however nested, are in ``output_dtype``; all others are unchanged."""
        _, output = run_probe()
        _check_dtypes("outputs", [output["product"].dtype, output["nested"][0].dtype], precision, "output_dtype")
        assert output["labels"].dtype == torch.int64, (
            f"an integer output is {output['labels'].dtype}. Expected: torch.int64"
        )
        assert output["text"] == "kept", f"a text output is {output['text']!r}. Expected: 'kept'"

    @tier("T2")
    def test_whole_numbers_go_in_as_they_are(self, run_probe: Any, runtime: Runtime) -> None:
        """Integer inputs reach the module in their own dtype."""
        probe, _ = run_probe()
        assert probe.given[0]["labels"] == torch.int64, (
            f"an integer input is {probe.given[0]['labels']}. Expected: torch.int64"
        )

    @tier("T2")
    def test_gradients_and_optimizer_state_are_of_the_declared_dtype(self, runtime: Runtime, precision: Any) -> None:
        """Gradients are in ``param_dtype``, the optimizer's state too unless ``state_dtype`` is another.

        That holds for what torch's optimizer keeps, also after loading it; the precision may add more in any dtype.
        """
        known = _KnownStep(runtime, momentum=0.9)
        known.backward()
        _check_dtypes("gradients", [known.gradient.dtype], precision, "param_dtype")
        known.step()
        declared = "param_dtype" if precision.state_dtype is None else "state_dtype"
        momentum = known.momentum()
        _check_dtypes("the optimizer's state", [momentum.dtype], precision, declared)
        known.inner.load_state_dict(_reloaded(known.inner.state_dict()))
        _check_dtypes("the optimizer's state, loaded again", [known.momentum().dtype], precision, declared)
        assert torch.equal(known.momentum(), momentum), (
            f"the optimizer's momentum, loaded again: {known.momentum().tolist()}. Expected: {momentum.tolist()}"
        )

    # -- training ------------------------------------------------------------------------------------------------

    @tier("T2")
    def test_training_is_close_to_float32(self, arguments: dict[str, Any], precision_of: Any) -> None:
        """The losses of a Trainer are close to those of a plain loop on the CPU in float32."""
        losses = problem.Losses()
        Trainer(**{**problem.OPTIONS, **arguments}, callbacks=losses).fit(problem.Classifier(), problem.loader())
        error = problem.largest_difference(losses.values, problem.by_hand()[0])
        allowed = max(_TOLERANCES[precision_of.compute_dtype], min(_ROUNDED * precision_of.rounding, _AT_MOST))
        assert error <= allowed, f"losses differ by {error:.3g} from those in float32. Expected: at most {allowed:g}"

    @pytest.fixture
    def precision_of(self, backend: BackendUnderTest) -> Any:
        """The precision as its spec creates it, not connected to a device."""
        return backend.create()

    @tier("T2")
    def test_a_step_is_of_true_gradients(self, known: _KnownStep, precision: Any) -> None:
        """Steps use the gradients of the unscaled loss."""
        weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
        for _ in range(3):
            known.backward()
            known.step()
            known.zero_grad()
            weights = weights - _RATE * torch.tensor(_INPUTS, dtype=torch.float64)
            _check_close("the weights after a step", known.weight, weights, precision)

    @tier("T2")
    def test_accumulated_gradients_add_up(self, known: _KnownStep, precision: Any) -> None:
        """The gradients of two backward passes before a step add up."""
        known.backward()
        known.backward()
        known.step()
        expected = torch.tensor([1.0, -2.0, 0.5]) - 2 * _RATE * torch.tensor(_INPUTS)
        _check_close("the weights after a step of two backward passes", known.weight, expected, precision)

    # -- scaling -------------------------------------------------------------------------------------------------

    @tier("T2")
    def test_gradients_are_scaled_as_declared(self, known: _KnownStep, precision: Any) -> None:
        """After ``backward`` gradients are scaled if, and only if, ``scales_loss`` is True."""
        scale = known.scale()
        if precision.scales_loss:
            assert scale > 1, f"scales_loss is True, but gradients are scaled by {scale:g}. Expected: more than 1"
        else:
            assert scale == pytest.approx(1, rel=1e-2), f"scales_loss is False, but gradients are scaled by {scale:g}"

    @tier("T2")
    def test_an_overflow_is_left_out(self, known: _KnownStep, precision: Any) -> None:
        """A step with infinite gradients changes no weight, and halves the scale."""
        if not precision.scales_loss:
            skip_by_declaration("scales_loss is False")
        before, scale = known.weight.clone(), known.scale()
        known.backward(math.inf)
        known.step()
        known.zero_grad()
        assert torch.equal(known.weight, before), (
            f"after a step with infinite gradients the weights are {known.weight.tolist()}. Expected: {before.tolist()}"
        )
        after = known.scale()
        assert after == scale / 2, (
            f"after a step with infinite gradients the scale is {after:g}. Expected: {scale / 2:g}"
        )
        known.backward()
        known.step()
        expected = before.double().cpu() - _RATE * torch.tensor(_INPUTS, dtype=torch.float64)
        _check_close("the weights after the next step", known.weight, expected, precision)

    @tier("T2")
    def test_gradients_are_unscaled_once(self, known: _KnownStep, precision: Any) -> None:
        """``unscale_gradients`` unscales the gradients once, even if it is called again before the step."""
        known.backward()
        for _ in range(2):
            precision.unscale_gradients(known.inner)
            _check_close("unscaled gradients", known.gradient, torch.tensor(_INPUTS), precision)
        known.step()
        expected = torch.tensor([1.0, -2.0, 0.5]) - _RATE * torch.tensor(_INPUTS)
        _check_close("the weights after a step of unscaled gradients", known.weight, expected, precision)

    @tier("T2")
    @pytest.mark.parametrize("algorithm", ["norm", "value"])
    def test_clipping_is_of_true_gradients(
        self, runtime: Runtime, known: _KnownStep, precision: Any, algorithm: str
    ) -> None:
        """A Runtime clips the unscaled gradients, by norm or by value, as torch does."""
        truth = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        truth.grad = torch.tensor(_INPUTS, dtype=torch.float64)
        known.backward()
        if algorithm == "norm":
            norm = runtime.clip_grad_norm_(known.net.parameters(), _LIMIT)
            expected = nn.utils.clip_grad_norm_([truth], _LIMIT)
            assert norm is not None, "clip_grad_norm_() returned None. Expected: the norm before clipping"
            _check_close("the norm before clipping", norm, expected, precision)
        else:
            runtime.clip_grad_value_(known.net.parameters(), _LIMIT)
            nn.utils.clip_grad_value_([truth], _LIMIT)
        _check_close(f"gradients clipped by {algorithm}", known.gradient, truth.grad, precision)

    @tier("T2")
    def test_scaled_gradients_are_not_clipped(self, known: _KnownStep, precision: Any) -> None:
        """``clip_gradients`` refuses gradients that are still scaled, for which the limit is meaningless."""
        if not precision.scales_loss:
            skip_by_declaration("scales_loss is False")
        known.backward()
        try:
            precision.clip_gradients(known.net.parameters(), _LIMIT)
        except CoreError:
            return
        pytest.fail("clip_gradients() of scaled gradients raised nothing. Expected: core.errors.ConfigurationError")

    @tier("T2")
    def test_another_algorithm_is_refused(self, known: _KnownStep, precision: Any) -> None:
        """An algorithm other than ``"norm"`` and ``"value"`` raises a CoreError."""
        known.backward()
        precision.unscale_gradients(known.inner)
        try:
            precision.clip_gradients(known.net.parameters(), _LIMIT, "sum")
        except CoreError:
            return
        pytest.fail("algorithm='sum' raised nothing. Expected: core.errors.ConfigurationError")

    # -- state ---------------------------------------------------------------------------------------------------

    @tier("T2")
    def test_its_state_can_be_kept(self, known: _KnownStep, precision: Any) -> None:
        """``torch.load(weights_only=True)`` can load what ``state_dict`` returns."""
        known.backward()
        known.step()
        state = precision.state_dict()
        assert isinstance(state, dict), f"state_dict() returned a {type(state).__name__}. Expected: a dict"
        assert _plain(_reloaded(state)) == _plain(state), f"state_dict() is not equal after saving and loading: {state}"

    @tier("T2")
    def test_its_state_goes_on(self, arguments: dict[str, Any], known: _KnownStep, precision: Any) -> None:
        """A new instance that loads the state has the same scale."""
        if precision.scales_loss:  # so that the scale is not the initial one
            known.backward(math.inf)
            known.step()
            known.zero_grad()
        state, expected = _reloaded(precision.state_dict()), known.scale()
        with Runtime(**arguments) as other:
            other.launch()
            other.strategy.precision.load_state_dict(state)
            found = _KnownStep(other).scale()
        assert found == expected, f"after load_state_dict() the scale is {found:g}. Expected: {expected:g}"

    @tier("T2")
    def test_an_empty_state_is_taken(self, precision: Any) -> None:
        """``load_state_dict`` accepts the state of another precision, which is empty for most."""
        precision.load_state_dict({})

    # -- life ----------------------------------------------------------------------------------------------------

    @tier("T2")
    @pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
    def test_the_default_dtype_is_restored(self, runtime: Runtime, fails: bool) -> None:
        """After a forward pass, even one that raises, the default dtype and autocast are as before."""
        before = torch.get_default_dtype(), torch.is_autocast_enabled(runtime.device.type)
        prepared = runtime.prepare(Probe())
        if fails:
            with pytest.raises(ZeroDivisionError):
                prepared(_batch(runtime.device), fail=True)
        else:
            prepared(_batch(runtime.device))
        after = torch.get_default_dtype(), torch.is_autocast_enabled(runtime.device.type)
        assert after == before, f"a forward pass leaves (default dtype, autocast) {after}. Expected: {before}"

    @tier("T2")
    def test_teardown_restores_the_process(self, runtime: Runtime, precision: Any) -> None:
        """After ``teardown``, which can be called twice, the default dtype and grad mode are as before."""
        runtime.prepare(Probe())(_batch(runtime.device))
        runtime.teardown()
        precision.teardown()
        after = torch.get_default_dtype(), torch.is_grad_enabled()
        expected = torch.float32, True
        assert after == expected, f"teardown leaves (default dtype, gradients) {after}. Expected: {expected}"


class _KnownStep:
    """Backward passes and steps with known gradients."""

    def __init__(self, runtime: Runtime, momentum: float = 0.0) -> None:
        self.runtime = runtime
        self.net = Known()
        prepared = runtime.prepare(self.net)
        self.prepared: nn.Module = prepared
        self.inner = torch.optim.SGD(self.net.parameters(), lr=_RATE, momentum=momentum)
        self.optimizer = runtime.prepare(self.inner)

    @property
    def weight(self) -> Tensor:
        return self.net.weight.detach()

    @property
    def gradient(self) -> Tensor:
        gradient = self.net.weight.grad
        assert gradient is not None, "backward() leaves no gradient"
        return gradient

    def backward(self, factor: float = 1.0) -> None:
        inputs = torch.tensor(_INPUTS, device=self.runtime.device) * factor
        self.runtime.backward(self.prepared(inputs))

    def step(self) -> None:
        self.optimizer.step()

    def momentum(self) -> Tensor:
        """Of the weight, as the optimizer has it."""
        found = self.inner.state[self.net.weight].get("momentum_buffer")
        assert isinstance(found, Tensor), "the optimizer has no momentum after a step"
        return found.detach().clone()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def scale(self) -> float:
        """Measure the scale of the gradients, in a step after which the weights are restored."""
        before = self.weight.clone()
        self.backward()
        scale = (self.gradient[2].double() / _INPUTS[2]).item()
        self.step()
        self.zero_grad()
        with torch.no_grad():
            self.net.weight.copy_(before)
        return scale


def _batch(device: torch.device) -> dict[str, Tensor]:
    return {"inputs": torch.ones(2, 4, device=device), "labels": torch.tensor([1, 2], device=device)}


def _reloaded(state: Mapping[str, Any]) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def _plain(state: Any) -> Any:
    """``state`` with numbers in place of tensors, which cannot be compared with ``==``."""
    return map_tensors(lambda tensor: (str(tensor.dtype), tensor.tolist()), state)


def _check_dtypes(what: str, found: list[torch.dtype], precision: Any, field: str) -> None:
    expected = getattr(precision, field)
    assert set(found) == {expected}, (
        f"{what}: {', '.join(map(str, set(found)))}. Expected: the declared {field}, {expected}"
    )


def _check_close(what: str, found: Tensor, expected: Tensor, precision: Any) -> None:
    allowed = exactness(precision)
    error = (found.detach().cpu().double() - expected.double()).abs().max().item()
    assert error <= allowed * max(1.0, expected.abs().max().item()), (
        f"{what}: {found.detach().cpu().tolist()}. Expected: {expected.tolist()} +- {allowed:g}"
    )
