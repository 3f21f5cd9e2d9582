"""T2 of accelerators: training on one device equals training on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_hal import Runtime, Trainer
from torch_hal.callbacks.checkpoint.model_checkpoint import ModelCheckpoint
from torch_hal_devkit import problem
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.marks import skip_by_declaration, tier
from torch_hal_devkit.process_state import changes, recorded
from torch_hal_devkit.suites.device import resolved

__all__ = ["TOLERANCES", "TrainingTests"]

TOLERANCES: Mapping[str, float] = {
    "64-true": 1e-9,
    "32-true": 1e-5,
    "16-mixed": 1e-2,
    "bf16-mixed": 1e-1,
    "16-true": 2e-2,
    "bf16-true": 1e-1,
}
"""By precision: the tolerance of the 16 losses compared with a plain loop on the CPU, in float64 for ``64-true`` and
float32 otherwise. The losses begin at 1.2 and end below 0.3."""

_OF_A_RUN = ("devices in use", "random state")
"""What a run leaves behind: a device stays initialized until its process ends; loaders draw."""

_NEEDS = {
    "32-true": (),
    "64-true": ("float64",),
    "16-true": ("float16",),
    "bf16-true": ("bfloat16",),
    "16-mixed": ("float16", "autocast", "loss_scaling"),
    "bf16-mixed": ("bfloat16", "autocast"),
}


def _precisions(*names: str, eager: bool = False) -> pytest.MarkDecorator:
    more = ("eager",) if eager else ()
    # core refuses a precision whose needs the accelerator does not support, so there is nothing to try.
    rows = [
        pytest.param(name, marks=tier("T2", needs=(*_NEEDS[name], *more), tried=not _NEEDS[name])) for name in names
    ]
    return pytest.mark.parametrize("precision", rows)


class TrainingTests:
    """Tests of tier T2."""

    @pytest.fixture
    def tolerances(self) -> Mapping[str, float]:
        """The tolerance of the losses by precision; an override explains itself in its docstring."""
        return TOLERANCES

    @pytest.fixture
    def trainer(self, backend: BackendUnderTest, tmp_path: Path) -> Callable[..., Trainer]:
        """Creates a Trainer on one device of the accelerator, with the accelerator's default strategy."""

        def make(accelerator: str = backend.name, precision: str = "32-true", **options: Any) -> Trainer:
            if accelerator == backend.name:
                _check_supported(backend, precision)
            arguments = {"accelerator": accelerator, "devices": 1, "precision": precision, "default_root_dir": tmp_path}
            return Trainer(**{**problem.OPTIONS, **arguments, **options})

        return make

    @pytest.fixture
    def runtime(self, backend: BackendUnderTest) -> Callable[..., Runtime]:
        """Creates a Runtime on one device of the accelerator, with the accelerator's default strategy."""

        def make(precision: str = "32-true") -> Runtime:
            strategy = _check_supported(backend, precision)
            if not strategy.supports_custom_loop:
                skip_by_declaration(f"its default strategy {strategy.name!r} does not support custom loops")
            return Runtime(accelerator=backend.name, devices=1, precision=precision)

        return make

    # -- training ------------------------------------------------------------------------------------------------

    @tier("T2")
    @_precisions(*_NEEDS)
    def test_training_equals_the_cpu(
        self, trainer: Callable[..., Trainer], tolerances: Mapping[str, float], precision: str
    ) -> None:
        """The losses of each step and the trained module equal those of a plain loop on the CPU."""
        losses, module = problem.Losses(), problem.Classifier()
        trainer(precision=precision, callbacks=losses).fit(module, problem.loader())
        expected, state = problem.by_hand(torch.float64 if precision == "64-true" else torch.float32)
        _check_losses(losses.values, expected, tolerances[precision])
        if precision == "32-true":
            _check_state(module.net.state_dict(), state, 10 * tolerances[precision])

    @tier("T2", needs=("eager",))
    def test_custom_loop_equals_the_cpu(self, runtime: Callable[..., Runtime], tolerances: Mapping[str, float]) -> None:
        """The losses of a custom loop with a Runtime equal those of the CPU."""
        with runtime() as live:
            losses = _custom_loop(live)
        _check_losses(losses, problem.by_hand()[0], tolerances["32-true"])

    @tier("T2", needs=("eager",))
    @_precisions("bf16-mixed", "16-mixed", eager=True)
    def test_mixed_precision_computes_in_16_bits(self, runtime: Callable[..., Runtime], precision: str) -> None:
        """In the module linear layers return 16 bits; the module's outputs and parameters have 32."""
        expected = torch.bfloat16 if precision == "bf16-mixed" else torch.float16
        inside: list[torch.dtype] = []
        with runtime(precision) as live:
            net = problem.network()
            net[0].register_forward_hook(lambda module, inputs, output: inside.append(output.dtype))  # type: ignore[index]
            prepared, loader = live.prepare(net, problem.loader())
            outside = prepared(next(iter(loader))[0]).dtype
        assert inside == [expected], (
            f"precision={precision!r}: a linear layer returned {inside[0]}. Expected: {expected}"
        )
        assert outside == torch.float32, f"precision={precision!r}: the module returned {outside}. Expected: float32"
        kept = {parameter.dtype for parameter in net.parameters()}
        assert kept == {torch.float32}, f"precision={precision!r}: parameters are {kept}. Expected: float32"

    # -- placement -----------------------------------------------------------------------------------------------

    @tier("T2", needs=("eager",))
    def test_runtime_placement(self, runtime: Callable[..., Runtime]) -> None:
        """Parameters, buffers, the optimizer's state, batches and outputs are on the device."""
        with runtime() as live:
            net = problem.network()
            net, optimizer, loader = live.prepare(net, problem.optimizer_of(net), problem.loader())
            inputs, labels = next(iter(loader))
            output = net(inputs)
            live.backward(nn.functional.cross_entropy(output, labels))
            optimizer.step()
            state = [value for part in optimizer.state.values() for value in part.values() if isinstance(value, Tensor)]
            _check_placement(
                live.device,
                parameters=net.parameters(),
                buffers=net.buffers(),
                gradients=[parameter.grad for parameter in net.parameters()],
                optimizer=[value for value in state if value.dim()],
                batch=(inputs, labels),
                output=[output],
            )

    @tier("T2", needs=("eager",))
    def test_trainer_placement(self, trainer: Callable[..., Trainer]) -> None:
        """In ``training_step`` parameters and the batch are on the device."""

        class Recorder(problem.Classifier):
            def training_step(self, batch: Any, batch_idx: int) -> Tensor:
                seen.append((next(self.parameters()).device, *(tensor.device for tensor in batch)))
                return super().training_step(batch, batch_idx)

        seen: list[tuple[torch.device, ...]] = []
        made = trainer(max_epochs=1)
        made.fit(Recorder(), problem.loader())
        expected = torch.device(made.plan.devices[0])
        for devices in seen:
            assert set(devices) == {expected}, (
                f"in training_step, parameters and batch are on {devices}. Expected: {expected}"
            )

    @tier("T3", needs=("eager",))
    def test_a_device_by_its_index(
        self, backend: BackendUnderTest, devices: int | None, tolerances: Mapping[str, float]
    ) -> None:
        """With ``devices=[last index]`` everything is on that device, and training equals the CPU."""
        if devices is None:
            skip_by_declaration("device_limit() is None: any number of processes shares the hardware")
        strategy = _check_supported(backend, "32-true")
        if not strategy.supports_custom_loop:
            skip_by_declaration(f"its default strategy {strategy.name!r} does not support custom loops")
        first, last = (resolved(backend, devices=[index]).devices[0] for index in (0, devices - 1))
        assert first != last, f"devices=[{devices - 1}] and devices=[0] both select {last}. Expected: different devices"
        with Runtime(accelerator=backend.name, devices=[devices - 1]) as live:
            net = live.prepare(problem.network())
            _check_placement(torch.device(last), parameters=net.parameters(), buffers=net.buffers())
            _check_losses(_custom_loop(live), problem.by_hand()[0], tolerances["32-true"])

    # -- evaluation ----------------------------------------------------------------------------------------------

    @tier("T2")
    def test_prediction_equals_the_cpu(self, trainer: Callable[..., Trainer], tolerances: Mapping[str, float]) -> None:
        """``predict`` returns the module's outputs as on the CPU, as CPU tensors."""
        outputs = trainer().predict(problem.Classifier(), problem.loader())
        kinds = {output.device.type for output in outputs}
        assert kinds == {"cpu"}, f"predict() returned tensors on {kinds}. Expected: the CPU"
        error = (torch.cat(outputs) - problem.outputs_by_hand()[0]).abs().max().item()
        assert error <= tolerances["32-true"], f"predict() is off by {error:.3g}. Expected: {tolerances['32-true']:g}"

    @tier("T2", needs=("eager",))
    def test_validation_equals_the_cpu(self, trainer: Callable[..., Trainer], tolerances: Mapping[str, float]) -> None:
        """What ``validation_step`` logs, averaged over all items, equals the CPU's value."""
        found = trainer().validate(problem.Classifier(), problem.loader(), verbose=False)[0]["loss"]
        error = abs(found - problem.outputs_by_hand()[1])
        assert error <= tolerances["32-true"], f"validate() is off by {error:.3g}. Expected: {tolerances['32-true']:g}"

    # -- checkpoints ---------------------------------------------------------------------------------------------

    @tier("T2")
    @pytest.mark.parametrize("direction", ["to the cpu", "from the cpu"])
    def test_resuming_on_another_accelerator(
        self,
        backend: BackendUnderTest,
        trainer: Callable[..., Trainer],
        tolerances: Mapping[str, float],
        tmp_path: Path,
        direction: str,
    ) -> None:
        """A run that was checkpointed on the device resumes on the CPU, and vice versa, with the same result."""
        first, second = ("cpu", backend.name) if direction == "from the cpu" else (backend.name, "cpu")
        saving = ModelCheckpoint(tmp_path / "saved")
        trainer(first, max_epochs=1, callbacks=saving, enable_checkpointing=True).fit(
            problem.Classifier(), problem.loader()
        )
        assert saving.best_model_path, "the Trainer wrote no checkpoint"
        losses, module = problem.Losses(), problem.Classifier()
        trainer(second, callbacks=losses).fit(module, problem.loader(), ckpt_path=saving.best_model_path)
        expected, state = problem.by_hand()
        _check_losses(losses.values, expected[len(expected) // 2 :], tolerances["32-true"])
        _check_state(module.net.state_dict(), state, 10 * tolerances["32-true"])

    @tier("T2", needs=("eager",))
    def test_a_checkpoint_is_exact(self, runtime: Callable[..., Runtime], tmp_path: Path) -> None:
        """A checkpoint from the device is loaded on the CPU, and on the device again, bit for bit."""
        path = tmp_path / "checkpoint"
        values = torch.randn(33, generator=torch.Generator().manual_seed(5))
        with runtime() as live:
            net = live.prepare(problem.network())
            live.save({"net": net, "values": values.to(live.device)}, path)
            saved = {name: value.cpu() for name, value in net.state_dict().items()}
        with Runtime(accelerator="cpu", devices=1) as host:
            read = host.load(path)
        assert torch.equal(read["values"], values), "a tensor has different values after loading"
        assert {value.device.type for value in read["net"].values()} == {"cpu"}, "loaded tensors are not on the CPU"
        _check_state(read["net"], saved, 0.0)
        with runtime() as live:
            net = live.prepare(problem.network())
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.zero_()
            live.load(path, {"net": net})
            _check_state(net.state_dict(), saved, 0.0)
            _check_placement(live.device, parameters=net.parameters(), buffers=net.buffers())

    # -- life ----------------------------------------------------------------------------------------------------

    @tier("T2", needs=("memory_stats",))
    def test_memory_is_freed(self, backend: BackendUnderTest, trainer: Callable[..., Trainer]) -> None:
        """After a run whose module is deleted, the device has as much memory in use as before."""

        def run() -> str:
            made = trainer(max_epochs=1)
            made.fit(problem.Classifier(), problem.loader())
            return str(made.plan.devices[0])

        device = torch.device(run())  # what a first run sets up permanently is not a leak
        accelerator = backend.create()
        before = _allocated(accelerator, device)
        for _ in range(3):
            run()
        after = _allocated(accelerator, device)
        assert after <= before, f"three runs leave {after - before} bytes in use on {device}. Expected: 0"

    @tier("T2", needs=("eager",))
    def test_two_runtimes_one_after_another(
        self, runtime: Callable[..., Runtime], tolerances: Mapping[str, float]
    ) -> None:
        """A second Runtime in the same process trains like the first, and leaves the process unchanged."""
        expected, before = problem.by_hand()[0], recorded()
        for which in ("first", "second"):
            live = runtime()
            losses = _custom_loop(live)
            live.teardown()
            live.teardown()
            _check_losses(losses, expected, tolerances["32-true"], of=f"the {which} Runtime's ")
            left = {aspect: change for aspect, change in changes(before, recorded()).items() if aspect not in _OF_A_RUN}
            assert not left, f"the {which} Runtime leaves the process changed: {left}. Expected: no change"


def _check_supported(backend: BackendUnderTest, precision: str) -> Any:
    """The accelerator's default strategy for one device; skips the test if it does not support the precision."""
    strategy = resolved(backend, devices=1).parts["strategy"]
    if strategy.precisions is not None and precision not in strategy.precisions:
        supported = ", ".join(strategy.precisions)
        skip_by_declaration(f"its default strategy {strategy.name!r} supports only the precisions {supported}")
    return strategy


def _custom_loop(runtime: Runtime) -> list[float]:
    net = problem.network()
    net, optimizer, loader = runtime.prepare(net, problem.optimizer_of(net), problem.loader())
    losses = []
    for _ in range(problem.EPOCHS):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(net(inputs), labels)
            optimizer.zero_grad()
            runtime.backward(loss)
            optimizer.step()
            losses.append(loss.detach())
    return [loss.item() for loss in losses]


def _check_losses(found: list[float], expected: list[float], tolerance: float, of: str = "") -> None:
    assert len(found) == len(expected), f"{of}training took {len(found)} steps. Expected: {len(expected)}"
    for step, (loss, other) in enumerate(zip(found, expected, strict=True)):
        assert abs(loss - other) <= tolerance, (
            f"{of}loss of step {step} is {loss:.7g}. Expected: the CPU's {other:.7g} +- {tolerance:g}"
        )


def _check_state(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys(), f"the state has {[*found]}. Expected: {[*expected]}"
    for name, value in expected.items():
        error = (found[name].cpu().double() - value.double()).abs().max().item()
        assert error <= tolerance, (
            f"{name!r} of the module's state is off by {error:.3g}. Expected: at most {tolerance:g}"
        )


def _check_placement(device: torch.device, **parts: Any) -> None:
    for name, tensors in parts.items():
        elsewhere = {str(tensor.device) for tensor in tensors} - {str(device)}
        assert not elsewhere, f"{name}: on {', '.join(sorted(elsewhere))}. Expected: {device}"


def _allocated(accelerator: Any, device: torch.device) -> int:
    gc.collect()
    accelerator.synchronize(device)
    stats = accelerator.get_device_stats(device)
    assert "memory_allocated_bytes" in stats, f"the statistics are {[*stats]}. Expected: memory_allocated_bytes"
    return int(stats["memory_allocated_bytes"])
