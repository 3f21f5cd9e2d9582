"""T2 and T3 of accelerators: what they do to the process, and to the one device that they are asked about."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_hal.accelerators import Accelerator
from torch_hal.errors import BackendError
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.marks import skip_by_declaration, tier
from torch_hal_devkit.process_state import ASPECTS
from torch_hal_devkit.suites.device import resolved
from torch_hal_devkit.suites.importing import probed

__all__ = ["EachDeviceTests"]

_USED = tuple(aspect for aspect in ASPECTS if aspect not in ("module search path", "child processes", "devices in use"))
_BUFFER = 2**20


class EachDeviceTests:
    """Tests of tiers T2 and T3."""

    @pytest.fixture
    def each(self, backend: BackendUnderTest, devices: int | None) -> tuple[torch.device, ...]:
        """All devices, at least two."""
        if devices is None:
            skip_by_declaration("device_limit() is None: any number of processes shares the hardware")
        backend.create().import_backend()
        return tuple(torch.device(resolved(backend, devices=[index]).devices[0]) for index in range(devices))

    @tier("T2", needs=("eager",))
    @pytest.mark.parametrize("aspect", _USED)
    def test_using_a_device_changes_nothing_else(self, backend: BackendUnderTest, aspect: str) -> None:
        """Setting up a device, asking for its state and ``teardown`` leave the rest of the process unchanged."""
        device = resolved(backend, devices=1).devices[0]
        changes = probed("use_changes", backend, str(device)).value
        assert aspect not in changes, (
            f"setup_device({device}) to teardown() changes the {aspect}: {changes[aspect]}. Expected: no change"
        )

    @tier("T1")
    def test_exceptions_of_too_little_memory(self, backend: BackendUnderTest) -> None:
        """``is_out_of_memory`` recognizes torch's exception and ``out_of_memory_texts``, and no other error."""
        accelerator = backend.create()
        for error, expected in (
            (torch.OutOfMemoryError("out of memory"), True),
            *((RuntimeError(f"error: {text}, in stream 0"), True) for text in accelerator.out_of_memory_texts),
            (ValueError("shapes differ"), False),
            (RuntimeError("an illegal memory access was encountered"), False),
        ):
            found = accelerator.is_out_of_memory(error)
            assert found is expected, f"is_out_of_memory({error!r}) returned {found!r}. Expected: {expected}"

    @tier("T2")
    def test_devices_are_the_same_again(self, backend: BackendUnderTest, devices: int | None) -> None:
        """``get_parallel_devices`` returns a torch.device for each index, the same again, and leaves its argument."""
        accelerator = backend.create()
        accelerator.import_backend()
        indices = [*range(devices or 1)]
        first = accelerator.get_parallel_devices(accelerator.parse_devices(list(indices)))
        assert all(isinstance(device, torch.device) for device in first), f"get_parallel_devices() returned {first}"
        parsed = accelerator.parse_devices(list(indices))
        given = copy.copy(parsed)
        second = accelerator.get_parallel_devices(given)
        assert second == first, f"get_parallel_devices({indices}) returned {first} and then {second}"
        assert given == parsed, f"the list of devices {parsed} became {given}. Expected: no change"

    # -- several devices -----------------------------------------------------------------------------------------

    @tier("T3")
    def test_devices_keep_their_order(self, backend: BackendUnderTest, devices: int | None) -> None:
        """``devices=[last, first]`` selects these devices in that order."""
        if devices is None:
            skip_by_declaration("device_limit() is None: any number of processes shares the hardware")
        if "collectives" in (unsupported := backend.load().unsupported):
            skip_by_declaration(f"collectives is not supported: {unsupported['collectives']}")
        backwards = [*range(devices)][::-1]
        expected = [resolved(backend, devices=[index]).devices[0] for index in backwards]
        for value in (backwards, tuple(backwards), ", ".join(map(str, backwards))):
            found = [*resolved(backend, devices=value).devices]
            assert found == expected, f"devices={value!r} selects {found}. Expected: {expected}, in that order"

    @tier("T3", needs=("rng_state", "eager"))
    def test_random_state_of_each_device(self, backend: BackendUnderTest, each: tuple[torch.device, ...]) -> None:
        """State is read from, and restored to, the device that is named, whichever is current, and no other."""
        accelerator = backend.create()
        _use_all(accelerator, each)
        for device in each:
            other = each[0] if device != each[0] else each[-1]
            accelerator.setup_device(other)
            state, state_of_other = accelerator.get_rng_state(device), accelerator.get_rng_state(other)
            drawn = torch.rand(32, device=device).cpu()
            accelerator.set_rng_state(state, device)
            again = torch.rand(32, device=device).cpu()
            assert torch.equal(drawn, again), f"after set_rng_state(state, {device}) {device} draws different numbers"
            assert torch.equal(accelerator.get_rng_state(other), state_of_other), (
                f"drawing on {device}, and set_rng_state(state, {device}), change the state of {other}"
            )
        accelerator.setup_device(each[0])

    @tier("T3", needs=("memory_stats", "eager"))
    def test_statistics_of_each_device(self, backend: BackendUnderTest, each: tuple[torch.device, ...]) -> None:
        """``get_device_stats`` counts the memory of the device that is named, whichever is current."""
        accelerator = backend.create()
        _use_all(accelerator, each)
        for device in each:
            other = each[0] if device != each[0] else each[-1]
            spellings: tuple[Any, ...] = (device, str(device))
            before = [_allocated(accelerator, one) for one in (*spellings, other)]
            buffer = torch.zeros(_BUFFER, dtype=torch.uint8, device=device)
            grown = [
                after - start
                for after, start in zip(
                    (_allocated(accelerator, one) for one in (*spellings, other)), before, strict=True
                )
            ]
            del buffer
            for spelling, growth in zip(spellings, grown, strict=False):
                assert growth >= _BUFFER, (
                    f"get_device_stats({spelling!r}): {_BUFFER} bytes created there count as {growth}"
                )
            assert grown[2] == 0, f"{_BUFFER} bytes created on {device} count as {grown[2]} on {other}"

    @tier("T3", needs=("eager",))
    def test_asking_for_another_device(self, backend: BackendUnderTest, each: tuple[torch.device, ...]) -> None:
        """Asking for the state of another device, or waiting for it, leaves the current device current."""
        accelerator = backend.create()
        accelerator.setup_device(each[0])
        calls: dict[str, Callable[[], object]] = {
            "get_device_stats": lambda: accelerator.get_device_stats(each[-1]),
            "synchronize": lambda: accelerator.synchronize(each[-1]),
            "empty_cache": lambda: accelerator.empty_cache(each[-1]),
        }
        if "rng_state" not in accelerator.unsupported:
            calls["set_rng_state"] = lambda: accelerator.set_rng_state(accelerator.get_rng_state(each[-1]), each[-1])
        for name, call in calls.items():
            call()
            placed = torch.ones(1, device=each[0].type).device
            assert placed == each[0], f"after {name} of {each[-1]}, the current device is {placed}. Expected: {each[0]}"


def _allocated(accelerator: Any, device: Any) -> int:
    accelerator.synchronize(torch.device(device))
    stats = accelerator.get_device_stats(device)
    assert "memory_allocated_bytes" in stats, f"the statistics are {[*stats]}. Expected: memory_allocated_bytes"
    return int(stats["memory_allocated_bytes"])


def _use_all(accelerator: Accelerator, devices: tuple[torch.device, ...]) -> None:
    """Set up each device in this process, the first one last; skip the test where a process can use only one."""
    accelerator.setup_device(devices[0])
    for device in devices[1:]:
        try:
            accelerator.setup_device(device)
        except BackendError as error:
            skip_by_declaration(f"a process uses one device: {error}")
    accelerator.setup_device(devices[0])
