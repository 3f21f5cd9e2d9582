"""T2 of accelerators: what core needs of one device besides training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torch_hal import Request, resolve
from torch_hal import random as generators
from torch_hal.errors import DeviceError
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.marks import skip_by_declaration, tier
from torch_hal_devkit.suites.hardware import REFUSED
from torch_hal_devkit.suites.importing import probed

__all__ = ["DeviceTests", "UNITS", "resolved"]

UNITS = frozenset(
    {"bytes", "celsius", "count", "hertz", "joules", "megahertz", "percent", "processes", "seconds", "watts"}
)
"""The units at the end of a statistic's name."""

_ACCEPTED: list[Any] = [1, "1", " 1 ", [0], (0,), "0,"]
_DTYPES = {"float64": 1e-12, "float16": 2e-2, "bfloat16": 1e-1}
_BUFFER = 2**22

_COPIED: dict[str, Callable[[], torch.Tensor]] = {
    "large integers": lambda: torch.tensor([2**40 + 1, -(2**62), 2**31]),
    "not finite": lambda: torch.tensor([math.nan, math.inf, -math.inf, -0.0]),
    "truth values": lambda: torch.tensor([True, False, True]),
    "empty": lambda: torch.empty(0, 3),
    "a scalar": lambda: torch.tensor(2.5),
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).t(),
    "part of another": lambda: torch.arange(20.0)[3:15:4],
    "expanded": lambda: torch.tensor([[1.0], [2.0]]).expand(2, 3),
}
"""Tensors on the host."""


class DeviceTests:
    """Tests of tier T2."""

    @pytest.fixture
    def device(self, backend: BackendUnderTest) -> torch.device:
        """The first device, made the current device of this process."""
        accelerator = backend.create()
        accelerator.import_backend()
        device = torch.device(resolved(backend, devices=1).devices[0])
        accelerator.setup_device(device)
        return device

    @pytest.fixture
    def accelerator(self, backend: BackendUnderTest, device: torch.device) -> Any:
        """A new instance, with its device set up."""
        return backend.create()

    # -- choosing ------------------------------------------------------------------------------------------------

    @tier("T2")
    @pytest.mark.parametrize("value", _ACCEPTED, ids=repr)
    def test_one_device_is_chosen(self, backend: BackendUnderTest, value: Any) -> None:
        """Each way to request one device selects one."""
        chosen = resolved(backend, devices=value).devices
        assert len(chosen) == 1, f"devices={value!r} selects {chosen}. Expected: one device"

    @tier("T2")
    @pytest.mark.parametrize("value", ["auto", -1, "-1"], ids=repr)
    def test_all_devices_are_chosen(self, backend: BackendUnderTest, devices: int | None, value: Any) -> None:
        """Each way to request all devices selects all, each once; ``"auto"`` also where there are no collectives."""
        accelerator = backend.create()
        count = accelerator.auto_device_count()
        lacks_collectives = count > 1 and "collectives" in accelerator.unsupported
        if lacks_collectives and value != "auto":
            skip_by_declaration(f"collectives is not supported: {accelerator.unsupported['collectives']}")
        chosen = resolved(backend, devices=value).devices
        if lacks_collectives and len(chosen) == 1:  # all, where a strategy drives them from one process
            count = 1
        assert len(chosen) == count, f"devices={value!r} selects {chosen}. Expected: auto_device_count(), {count}"
        assert devices is None or len(set(chosen)) == count, (
            f"devices={value!r} selects {chosen}. Expected: no duplicates"
        )

    @tier("T2")
    @pytest.mark.parametrize("value", REFUSED, ids=repr)
    def test_invalid_devices_are_refused(self, backend: BackendUnderTest, value: Any) -> None:
        """A value outside the grammar raises a DeviceError with the value and the available devices."""
        text = _refused(backend, value)
        assert "devices=" in text, f"the error does not name the argument: {text}"
        assert "available:" in text, f"the error does not say which devices are available: {text}"

    @tier("T2")
    def test_devices_that_are_not_there_are_refused(self, backend: BackendUnderTest, devices: int | None) -> None:
        """One device too many, and the index after the last, raise a DeviceError."""
        if devices is None:
            skip_by_declaration("device_limit() is None: any number of processes shares the hardware")
        for value in (devices + 1, [devices], f"{devices},"):
            _refused(backend, value)

    @tier("T2", needs=("eager",))
    def test_each_index_is_a_device_of_its_own(self, backend: BackendUnderTest, devices: int | None) -> None:
        """Each index selects a different device of the same type, on which a tensor can be created."""
        indices = range(devices or 1)
        chosen = [resolved(backend, devices=[index]).devices[0] for index in indices]
        assert devices is None or len(set(chosen)) == len(chosen), (
            f"indices {[*indices]} select {chosen}. Expected: no duplicates"
        )
        types = {torch.device(name).type for name in chosen}
        assert len(types) == 1, f"indices {[*indices]} select {chosen}. Expected: devices of one type"
        backend.create().import_backend()
        for name in chosen:
            placed = torch.ones(2, device=name).device
            assert placed == torch.device(name), f"a tensor created on {name!r} is on {placed}"

    @tier("T2", needs=("eager",), tried=False)
    def test_its_devices_are_not_the_hosts(self, devices: int | None, device: torch.device) -> None:
        """Its devices are not the CPU."""
        assert devices is None or device.type != "cpu", (
            f"it counts {devices} device(s), but the first one is {device}. Expected: the hardware's device type, "
            "or None from device_limit() for processes on the CPU"
        )

    # -- using ---------------------------------------------------------------------------------------------------

    @tier("T2", needs=("eager",))
    def test_a_device_is_made_current(self, accelerator: Any, device: torch.device) -> None:
        """After ``setup_device`` a tensor created on the device type is on that device."""
        accelerator.setup_device(device)
        placed = torch.ones(2, device=device.type).device
        assert placed.type == device.type, f"a tensor created on {device.type!r} is on {placed}"
        assert device.index is None or placed.index == device.index, (
            f"after setup_device({device}), a tensor made on {device.type!r} is on {placed}"
        )

    @tier("T2")
    def test_synchronize_and_empty_cache(self, accelerator: Any, device: torch.device) -> None:
        """``synchronize`` and ``empty_cache`` can be called repeatedly."""
        for _ in range(2):
            accelerator.synchronize(device)
            accelerator.empty_cache(device)

    @tier("T2")
    def test_accelerator_teardown_twice(self, backend: BackendUnderTest, device: torch.device) -> None:
        """``teardown`` can be called twice, and another instance can use the device afterwards."""
        first = backend.create()
        first.setup_device(device)
        first.teardown()
        first.teardown()
        second = backend.create()
        second.setup_device(device)
        second.synchronize(device)

    @tier("T2", needs=("eager",))
    def test_forking_after_use(self, backend: BackendUnderTest, device: torch.device) -> None:
        """A process that used the device says why it cannot be forked; otherwise a forked one can use the device."""
        answer = probed("forked_after_use", backend, str(device)).value
        if answer["reason"]:
            assert len(answer["reason"]) > 2, "fork_unsafe_reason() returned an empty text. Expected: a reason, or None"
            return
        assert answer["computed"] == "4.0", (
            f"fork_unsafe_reason() returned None, but a forked process that uses {device} gives: {answer['computed']}"
        )

    # -- random numbers ------------------------------------------------------------------------------------------

    @tier("T2", needs=("rng_state", "eager"))
    def test_random_state_is_restored(self, accelerator: Any, device: torch.device) -> None:
        """After ``set_rng_state`` the device draws the same numbers as after ``get_rng_state``."""
        state = accelerator.get_rng_state(device)
        assert isinstance(state, torch.Tensor), f"get_rng_state() returned {type(state).__name__}. Expected: a tensor"
        assert (state.dtype, state.device.type) == (torch.uint8, "cpu"), (
            f"get_rng_state() returned {state.dtype} on {state.device}. Expected: torch.uint8 on the CPU"
        )
        kept = state.clone()
        drawn = [torch.rand(64, device=device).cpu() for _ in range(2)]
        assert torch.equal(state, kept), "drawing changes the state that get_rng_state() returned. Expected: a copy"
        accelerator.set_rng_state(state, device)
        again = [torch.rand(64, device=device).cpu() for _ in range(2)]
        for before, after in zip(drawn, again, strict=True):
            assert torch.equal(before, after), f"after set_rng_state() {device} draws different numbers"
        assert not torch.equal(drawn[0], drawn[1]), f"{device} draws the same numbers twice"

    @tier("T2", needs=("rng_state", "eager"))
    def test_all_random_state_is_restored(self, accelerator: Any, device: torch.device) -> None:
        """The random state in a checkpoint restores the generators of host and device."""
        state = generators.get_rng_state(accelerator, device)
        drawn = torch.rand(8).tolist(), torch.rand(8, device=device).tolist()
        generators.set_rng_state(state, accelerator, device)
        again = torch.rand(8).tolist(), torch.rand(8, device=device).tolist()
        assert again == drawn, "after restoring the state of all generators, they draw different numbers"

    @tier("T2", needs=("rng_state", "eager"))
    def test_a_seed_decides_its_numbers(self, device: torch.device) -> None:
        """``torch.manual_seed`` seeds the device as it seeds the host."""
        draws = []
        for seed in (3, 3, 4):
            torch.manual_seed(seed)
            draws.append(torch.rand(64, device=device).tolist())
        assert draws[0] == draws[1], f"after torch.manual_seed(3) {device} draws different numbers each time"
        assert draws[0] != draws[2], f"after another seed {device} draws the same numbers"

    # -- computing -----------------------------------------------------------------------------------------------

    @tier("T2", needs=("eager",))
    @pytest.mark.parametrize("value", [pytest.param(value, marks=tier("T2", needs=(value,))) for value in _DTYPES])
    def test_it_computes_in(self, device: torch.device, value: str) -> None:
        """A matrix product and its gradient in the dtype are the CPU's in float64, rounded."""
        dtype = getattr(torch, value)
        draw = torch.Generator().manual_seed(3)
        left, right = (torch.randn(8, 8, generator=draw, dtype=torch.float64).to(dtype).double() for _ in range(2))
        moved = left.to(device, dtype).requires_grad_()
        product = moved @ right.to(device, dtype)
        assert product.dtype == dtype, f"a product of {dtype} is {product.dtype} on {device}"
        product.sum().backward()  # type: ignore[no-untyped-call]
        gradient = moved.grad
        assert gradient is not None, f"no gradient on {device}"
        for name, found, expected in (
            ("product", product.detach(), left @ right),
            ("gradient", gradient, right.sum(1).expand(8, 8)),
        ):
            error = (found.cpu().double() - expected).abs().max().item()
            assert error <= _DTYPES[value] * 8, f"{name} in {value} on {device}: off by {error:.3g}"

    @tier("T2", needs=("eager",))
    @pytest.mark.parametrize("what", _COPIED)
    def test_values_arrive_as_they_are(self, device: torch.device, what: str) -> None:
        """A tensor on the device, and its copy back on the host, have the host's values, whatever its layout."""
        given = _COPIED[what]()
        found = given.to(device)
        assert (found.dtype, found.shape) == (given.dtype, given.shape), f"{what}: {found.dtype}, {found.shape}"
        shown = str(found.cpu().tolist())
        assert shown == str(given.tolist()), f"{what}: on {device} it is {shown}. Expected: {given.tolist()}"

    @tier("T2", needs=("eager",))
    def test_dropout_drops(self, device: torch.device) -> None:
        """In training mode dropout sets about its share of elements to 0 and scales the others; else it sets none."""
        ones, dropout = torch.ones(1000, device=device), nn.Dropout(0.25)
        dropped = dropout(ones).cpu()
        zeros = int((dropped == 0).sum())
        assert 150 <= zeros <= 350, f"nn.Dropout(0.25) sets {zeros} of 1000 elements to 0 on {device}. Expected: 250"
        others = dropped[dropped != 0]
        assert torch.allclose(others, torch.full_like(others, 4 / 3)), f"the other elements are {others[:3].tolist()}"
        assert torch.equal(dropout.eval()(ones), ones), "nn.Dropout changes its input in evaluation mode"

    @tier("T2", needs=("autocast", "eager"))
    @pytest.mark.parametrize(
        "value", [pytest.param(value, marks=tier("T2", needs=(value,))) for value in ("bfloat16", "float16")]
    )
    def test_autocast(self, accelerator: Any, device: torch.device, value: str) -> None:
        """Under ``torch.autocast`` a linear layer returns the dtype; outside it does not."""
        dtype, kind = getattr(torch, value), accelerator.autocast_device_type(device)
        layer, inputs = nn.Linear(4, 4).to(device), torch.ones(2, 4, device=device)
        with torch.autocast(kind, dtype=dtype):
            inside = layer(inputs).dtype
        outside = layer(inputs).dtype
        assert inside == dtype, f"torch.autocast({kind!r}, dtype={dtype}): a linear layer on {device} returned {inside}"
        assert outside == torch.float32, f"after torch.autocast, a linear layer on {device} returned {outside}"

    @tier("T2", needs=("loss_scaling", "eager"))
    def test_loss_scaling(self, accelerator: Any, device: torch.device) -> None:
        """``torch.amp.GradScaler`` unscales gradients, and skips a step with infinite ones."""
        kind = accelerator.autocast_device_type(device)
        scaler = torch.amp.GradScaler(kind, init_scale=8.0)
        weight = nn.Parameter(torch.ones(2, device=device))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        for factor, expected, scale in ((2.0, [0.0, 0.0], 8.0), (math.inf, [0.0, 0.0], 4.0)):
            optimizer.zero_grad()
            scaler.scale((weight * factor).sum()).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            found = weight.tolist(), scaler.get_scale()
            assert found == (expected, scale), (
                f"a step with gradients of {factor} gives (weights, scale) {found}. Expected: {(expected, scale)}"
            )

    # -- statistics ----------------------------------------------------------------------------------------------

    @tier("T2")
    def test_statistics_are_numbers_with_units(self, accelerator: Any, device: torch.device) -> None:
        """``get_device_stats`` returns finite numbers whose names end with a unit, for a device and for its name."""
        stats = accelerator.get_device_stats(device)
        for name, value in stats.items():
            unit = name.rpartition("_")[2]
            assert unit in UNITS, f"statistic {name!r} does not end with a unit. Valid: _{', _'.join(sorted(UNITS))}"
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            assert number, f"statistic {name!r} is {value!r}. Expected: a finite number"
        by_name = accelerator.get_device_stats(str(device))
        assert by_name.keys() == stats.keys(), (
            f"get_device_stats({str(device)!r}) has {[*by_name]}, but for a torch.device {[*stats]}"
        )

    @tier("T2", needs=("memory_stats", "eager"))
    def test_memory_is_counted(self, accelerator: Any, device: torch.device) -> None:
        """``memory_allocated_bytes`` grows when a tensor is created on the device, and shrinks when it is deleted."""

        def allocated() -> int:
            accelerator.synchronize(device)
            stats = accelerator.get_device_stats(device)
            assert "memory_allocated_bytes" in stats, f"the statistics are {[*stats]}. Expected: memory_allocated_bytes"
            return int(stats["memory_allocated_bytes"])

        before = allocated()
        buffer = torch.zeros(_BUFFER, dtype=torch.uint8, device=device)
        during = allocated()
        del buffer
        after = allocated()
        assert during - before >= _BUFFER, f"a tensor of {_BUFFER} bytes counts as {during - before}"
        assert during - after >= _BUFFER, f"deleting a tensor of {_BUFFER} bytes frees {during - after}"
        peak = accelerator.get_device_stats(device).get("memory_allocated_peak_bytes", during)
        assert peak >= during, f"the peak is {peak} bytes, of which {during} were allocated at one time"


def resolved(backend: BackendUnderTest, **arguments: Any) -> Any:
    """The Plan for these arguments on the accelerator, without the user's environment."""
    return resolve(Request.read(environ=backend.environ, accelerator=backend.name, **arguments), backend.registry)


def _refused(backend: BackendUnderTest, value: Any) -> str:
    try:
        chosen = resolved(backend, devices=value).devices
    except DeviceError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"devices={value!r} raises {error!r}. Expected: core.errors.DeviceError") from error
    raise AssertionError(f"devices={value!r} selects {chosen}. Expected: core.errors.DeviceError")
