"""T1 and T2 of accelerators: copies, other instances, arguments, repetition, and generators in any order of calls."""

from __future__ import annotations

import copy
import threading
from random import Random
from typing import Any

import pytest
import torch

from torch_hal.accelerators import parse_devices
from torch_hal.errors import DeviceError
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.drawn import SEEDS
from torch_hal_devkit.marks import skip_by_declaration, tier
from torch_hal_devkit.suites.base import copied

__all__ = ["DeviceAlgebraTests"]

_DRAWS = {
    "uniform": lambda device: torch.rand(33, device=device),
    "normal": lambda device: torch.randn(5, 7, device=device),
    "integers": lambda device: torch.randint(0, 2**30, (9,), device=device),
    "an order": lambda device: torch.randperm(50, device=device),
    "in place": lambda device: torch.zeros(11, device=device).uniform_(-1.0, 1.0),
    "choices": lambda device: torch.zeros(21, device=device).bernoulli_(0.5),
}
"""Ways to draw from a device's generator."""

_BUFFER = 2**26
"""Bytes; more than what an allocator of the host keeps for later."""


class DeviceAlgebraTests:
    """Tests of tiers T1 and T2."""

    # -- no device -----------------------------------------------------------------------------------------------

    @tier("T1")
    @pytest.mark.parametrize("how", ["pickled", "copied"])
    def test_a_copy_of_it_works(self, backend: BackendUnderTest, how: str) -> None:
        """A pickled or deeply copied instance, as a started process gets one, is the same accelerator."""
        made = backend.create()
        before = _facts(made)
        other: Any = copied(made, how)
        other.teardown()
        assert type(other) is type(made), f"a {how} instance is a {type(other).__name__}"
        assert _facts(other) == before, f"a {how} instance has {_facts(other)}. Expected: {before}"
        assert _facts(made) == before, f"after the copy's teardown, the first has {_facts(made)}. Expected: {before}"

    @tier("T1")
    def test_other_threads_ask_it(self, backend: BackendUnderTest) -> None:
        """In a thread other than the main one it tells the same, by an instance of that thread and of another one."""
        made, found = backend.create(), []
        expected = _facts(made)

        def run() -> None:
            for one in (made, backend.create()):
                try:
                    found.append(_facts(one))
                except Exception as error:  # noqa: BLE001  whatever it raises is shown
                    found.append({"raised": repr(error)})

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert found == [expected] * 2, f"in another thread it tells {found}. Expected: {expected}"

    @tier("T1")
    @pytest.mark.parametrize("seed", SEEDS)
    def test_calls_in_any_order(self, backend: BackendUnderTest, seed: int) -> None:
        """What is told without a device is the same however often, in which order, and by which instance it is."""
        order, instances = Random(seed), [backend.create(), backend.create()]
        expected = _facts(backend.create())
        for name in order.choices([*expected], k=12):
            found = _facts(order.choice(instances), name)[name]
            assert found == expected[name], f"called again, {name}() returned {found!r}. Expected: {expected[name]!r}"
            if order.random() < 0.2:
                order.choice(instances).teardown()

    @tier("T1")
    def test_requests_are_left_as_they_are(self, backend: BackendUnderTest) -> None:
        """``parse_devices`` leaves its argument, and returns for each form of one request its indices, in its order."""
        accelerator = backend.create()
        limit = accelerator.device_limit()
        if limit == 0:
            skip_by_declaration("there is no device to ask for")
        count = min(limit or 3, 3)
        asked = [*reversed(range(count))]
        forms: list[Any] = [list(asked), tuple(asked), f"{', '.join(map(str, asked))}{',' * (count == 1)}"]
        found = []
        for form in forms:
            given = copy.copy(form)
            found.append(accelerator.parse_devices(given))
            assert given == form, f"parse_devices({form!r}) changes its argument to {given!r}"
        assert all(one == found[0] for one in found), f"parse_devices() of one request in its forms returned {found}"
        given = [*found[0]]
        assert given == asked or {*given} != {*asked}, (  # an override can replace indices
            f"parse_devices({asked}) returned {given}. Expected: the order of the request"
        )
        try:
            again = accelerator.parse_devices(found[0])
        except DeviceError:
            return
        assert again == found[0], f"parse_devices() of what it returned, {found[0]}, returned {again}"

    @tier("T1")
    def test_a_number_of_devices_is_picked(self, backend: BackendUnderTest) -> None:
        """``pick_devices(n)`` returns n indices, each once, of devices that are there; so may ``pick_idle_devices``."""
        accelerator = backend.create()
        available = accelerator.auto_device_count()
        for count in range(1, min(available, 4) + 1):
            found = accelerator.pick_devices(count)
            allowed = parse_devices(
                list(found), all_devices=available, limit=accelerator.device_limit(), accelerator=""
            )
            assert len(set(found)) == count, f"pick_devices({count}) returned {found}. Expected: {count} indices"
            assert [*allowed] == [*found], f"pick_devices({count}) returned {found}, of {available} devices"
            try:
                idle = accelerator.pick_idle_devices(count)
            except DeviceError:
                continue
            assert len(set(idle)) == count, f"pick_idle_devices({count}) returned {idle}. Expected: {count} indices"

    @tier("T1")
    def test_other_exceptions_of_memory(self, backend: BackendUnderTest) -> None:
        """``is_out_of_memory`` knows the host's exceptions and any case of letters, and answers for any exception."""
        accelerator = backend.create()
        for error, expected in (
            (MemoryError(), True),
            (OSError(12, "Cannot allocate memory"), True),
            (RuntimeError("CUDA OUT OF MEMORY. Tried to allocate 2 GiB"), True),
            *((RuntimeError(text.upper()), True) for text in accelerator.out_of_memory_texts),
            (KeyboardInterrupt(), False),
            (KeyError("memory"), False),
            (RuntimeError(""), False),
            (OSError(2, "No such file or directory"), False),
        ):
            found = accelerator.is_out_of_memory(error)
            assert found is expected, f"is_out_of_memory({error!r}) returned {found!r}. Expected: {expected}"

    # -- one device ----------------------------------------------------------------------------------------------

    @tier("T2")
    def test_what_a_device_tells(self, accelerator: Any, device: torch.device) -> None:
        """Types and reasons of a device are texts, the same again; statistics are a dict of the caller's own."""
        for _ in range(2):
            kind = accelerator.autocast_device_type(device)
            assert isinstance(kind, str), f"autocast_device_type() returned {kind!r}. Expected: a text"
            if "collectives" not in accelerator.unsupported:
                group = accelerator.process_group_backend(device)
                assert isinstance(group, str), f"process_group_backend() returned {group!r}. Expected: a text"
                assert group, "process_group_backend() returned an empty text"
            for name in ("inexact_resume_reason", "missing_rng_function"):
                reason = getattr(accelerator, name)(device)
                assert reason is None or (isinstance(reason, str) and reason), f"{name}() returned {reason!r}"
            exact = accelerator.inexact_resume_reason(device) is None
            assert exact or "rng_state" in accelerator.unsupported, (
                f"inexact_resume_reason() returned {accelerator.inexact_resume_reason(device)!r}, but rng_state is "
                "not declared unsupported"
            )
            stats = accelerator.get_device_stats(device)
            names = [*stats]
            bytes_ = {name: value for name, value in stats.items() if name.startswith("memory_allocated")}
            stats.clear()
            again = [*accelerator.get_device_stats(device)]
            assert again == names, f"after a change of what it returned, get_device_stats() has {again}"
            later = {name: accelerator.get_device_stats(device)[name] for name in bytes_}
            assert later == bytes_, f"asked again, get_device_stats() has {later}. Expected: {bytes_}, as before"

    @tier("T2", needs=("eager",))
    def test_values_stay_through_its_life(self, backend: BackendUnderTest, device: torch.device) -> None:
        """Emptying the cache, waiting, setting up and ``teardown`` leave tensors and the device's generator."""
        accelerator, other = backend.create(), backend.create()
        kept = torch.arange(1000.0, device=device)
        expected = kept.cpu().tolist()
        has_state = "rng_state" not in accelerator.unsupported
        for call in (
            lambda: accelerator.setup_device(device),
            lambda: accelerator.empty_cache(device),
            lambda: other.setup_device(device),
            other.teardown,
            lambda: accelerator.synchronize(device),
            lambda: accelerator.setup_device(device),
            accelerator.teardown,
            lambda: accelerator.setup_device(device),
        ):
            torch.rand(3, device=device)
            before = accelerator.get_rng_state(device) if has_state else None
            call()
            assert kept.cpu().tolist() == expected, "a tensor on the device changes by calls of its accelerator"
            if before is not None:
                is_same = torch.equal(accelerator.get_rng_state(device), before)
                assert is_same, f"the generator of {device} changes by calls of its accelerator. Expected: no change"
        assert float((kept * 2).sum()) == 999000.0, "after teardown() and setup_device() the device computes otherwise"
        accelerator.teardown()

    @tier("T2", needs=("eager",))
    @pytest.mark.parametrize("how", ["pickled", "copied"])
    def test_a_copy_uses_a_device(self, backend: BackendUnderTest, device: torch.device, how: str) -> None:
        """A pickled or deeply copied instance does on a device what the first one does."""
        made = backend.create()
        expected = _life(made, device)
        other: Any = copied(made, how)
        try:
            found = _life(other, device)
        except Exception as error:
            raise AssertionError(f"a {how} instance raised {error!r}. Expected: what the first one does") from error
        assert found == expected, f"a {how} instance gives {found}. Expected: {expected}"

    @tier("T2", needs=("eager",))
    def test_bytes_are_bytes(self, accelerator: Any, device: torch.device) -> None:
        """Of the statistics whose names end with ``_bytes``, one grows by the bytes of a tensor that is created."""

        def counted() -> dict[str, int]:
            accelerator.synchronize(device)
            stats = accelerator.get_device_stats(device)
            return {name: int(value) for name, value in stats.items() if name.endswith("_bytes")}

        before = counted()
        if "memory_stats" in accelerator.unsupported and not before:
            skip_by_declaration(f"memory_stats is not supported: {accelerator.unsupported['memory_stats']}")
        buffer = torch.ones(_BUFFER, dtype=torch.uint8, device=device)
        during = counted()
        assert int(buffer[-1]) == 1
        grown = {name: abs(during[name] - before[name]) for name in before}
        if "memory_stats" in accelerator.unsupported and not any(grown.values()):
            skip_by_declaration(f"memory_stats is not supported: {accelerator.unsupported['memory_stats']}")
        assert max(grown.values(), default=0) >= 0.9 * _BUFFER, (
            f"a tensor of {_BUFFER} bytes changes the statistics by {grown}. Expected: one of them by its bytes"
        )

    @tier("T2", needs=("eager",))
    def test_other_threads_use_it(self, backend: BackendUnderTest, device: torch.device) -> None:
        """Another thread sets the device up, waits for it and computes on it."""
        found: list[Any] = []

        def run() -> None:
            accelerator = backend.create()
            accelerator.setup_device(device)
            value = torch.ones(3, device=device).sum()
            accelerator.synchronize(device)
            accelerator.empty_cache(device)
            found.append((float(value), sorted(accelerator.get_device_stats(device))))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        expected = (3.0, sorted(backend.create().get_device_stats(device)))
        assert found == [expected], f"in another thread it gives {found}. Expected: {expected}"

    @tier("T2", needs=("rng_state", "eager"))
    @pytest.mark.parametrize("seed", SEEDS)
    def test_generators_in_any_order(self, backend: BackendUnderTest, device: torch.device, seed: int) -> None:
        """States of a generator, kept and set in any order by any instance, give the numbers that followed each."""
        order, instances = Random(seed), [backend.create(), backend.create()]
        kept: list[tuple[torch.Tensor, torch.Tensor, str, list[float]]] = []
        for _ in range(6):
            kind = order.choice([*_DRAWS])
            state = order.choice(instances).get_rng_state(device)
            drawn = _DRAWS[kind](device).cpu().tolist()
            kept.append((state, state.clone(), kind, drawn))
        for state, before, kind, drawn in order.sample(kept, len(kept)) + order.sample(kept, 2):
            order.choice(instances).set_rng_state(state, device)
            assert torch.equal(state, before), "set_rng_state() changes the state that it is given"
            back = order.choice(instances).get_rng_state(device)
            assert torch.equal(back, before), "get_rng_state() after set_rng_state() returned another state"
            found = _DRAWS[kind](device).cpu().tolist()
            assert found == drawn, f"after set_rng_state(), {device} draws {kind}: {found[:3]}. Expected: {drawn[:3]}"
            if order.random() < 0.3:
                instances[1].teardown()
                instances[1].setup_device(device)

    @tier("T2", needs=("rng_state", "eager"))
    def test_the_hosts_generator_is_another(self, accelerator: Any, device: torch.device) -> None:
        """Setting the state of a device that is not the host leaves the host's generator as it is."""
        if device.type == "cpu":
            skip_by_declaration("its devices are the host")
        state = accelerator.get_rng_state(device)
        torch.rand(1)
        before = torch.get_rng_state()
        accelerator.set_rng_state(state, device)
        assert torch.equal(torch.get_rng_state(), before), "set_rng_state() changes the host's generator"
        torch.rand(7)
        torch.rand(7, device=device)
        after = torch.get_rng_state()
        assert not torch.equal(after, before), "the host draws nothing"


def _life(accelerator: Any, device: torch.device) -> dict[str, Any]:
    """What it gives on a device, from ``setup_device`` to ``teardown``."""
    accelerator.setup_device(device)
    value = float(torch.ones(3, device=device).sum())
    accelerator.synchronize(device)
    accelerator.empty_cache(device)
    stats = sorted(accelerator.get_device_stats(device))
    told = accelerator.autocast_device_type(device), accelerator.inexact_resume_reason(device)
    accelerator.teardown()
    return {"value": value, "statistics": stats, "told": told}


def _facts(accelerator: Any, name: str = "") -> dict[str, Any]:
    """What it tells without a device; of one call, if it is named."""
    calls = {
        "name": lambda: accelerator.name,
        "is_available": accelerator.is_available,
        "auto_device_count": accelerator.auto_device_count,
        "device_limit": accelerator.device_limit,
        "is_out_of_memory": lambda: accelerator.is_out_of_memory(RuntimeError("out of memory")),
        "unsupported": lambda: dict(accelerator.unsupported),
        "device_family": lambda: accelerator.device_family,
    }
    return {call: function() for call, function in calls.items() if name in ("", call)}
