"""The grammar of ``devices=``."""

from __future__ import annotations

from typing import Any

import pytest

from core.accelerators import CPUAccelerator, parse_devices
from core.errors import DeviceError

from .device_rows import ACCEPTED, NOT_THERE, REFUSED


def _parse(devices: Any, count: int = 2) -> list[int]:
    return parse_devices(devices, all_devices=count, limit=count, accelerator="acme")


def _name(value: Any) -> str:
    # The same in every process of a distributed run of the tests: no addresses.
    return ascii(value)[:30] if isinstance(value, int | str | list | tuple | set | dict) else type(value).__name__


@pytest.mark.parametrize(("devices", "expected"), ACCEPTED, ids=_name)
def test_counts_and_indices_mean_the_same_on_every_accelerator(devices: Any, expected: list[int]) -> None:
    """A value in the grammar gives plain integers in the order of use, with a limit and without."""
    for parsed in (_parse(devices), CPUAccelerator().parse_devices(devices)):
        assert parsed == expected
        assert {type(index) for index in parsed} == {int}


@pytest.mark.parametrize("devices", ["auto", " auto ", -1, "-1", " -1 "], ids=_name)
def test_all_devices(devices: Any) -> None:
    """``auto`` and ``-1`` mean all devices there are; on the CPU one process."""
    assert _parse(devices, 3) == [0, 1, 2]
    assert _parse(devices, 1) == [0]
    assert CPUAccelerator().parse_devices(devices) == [0]


@pytest.mark.parametrize("devices", REFUSED, ids=_name)
def test_values_outside_the_grammar(devices: Any) -> None:
    """A value outside the grammar is refused with one error that says what was given and what is valid."""
    for parse in (_parse, CPUAccelerator().parse_devices):
        with pytest.raises(DeviceError, match=r"(?s)devices=.*Valid: 'auto' or -1 for all, a count k >= 1") as caught:
            parse(devices)
        assert repr(devices)[:20] in str(caught.value)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("devices", NOT_THERE, ids=_name)
def test_devices_that_are_not_there(devices: Any) -> None:
    """A count or an index that is not there is refused, saying which are; the CPU takes as many processes as named."""
    with pytest.raises(DeviceError, match=r"accelerator 'acme'.*available: devices 0 to 1\."):
        _parse(devices)
    assert len(CPUAccelerator().parse_devices(devices)) in (1, 2, 3, 4096)


@pytest.mark.parametrize("devices", ["auto", -1, 1, [0]], ids=_name)
def test_no_device_at_all(devices: Any) -> None:
    """Where no device is there, nothing is chosen, not even by ``auto``."""
    with pytest.raises(DeviceError, match=r"available: none\."):
        _parse(devices, 0)


def test_the_one_device_is_named() -> None:
    """With a single device the message says which index it has."""
    with pytest.raises(DeviceError, match=r"available: device 0\."):
        _parse([1], 1)


def test_processes_on_the_cpu_have_a_bound() -> None:
    """A count that no host could run is a slip and refused before anything is allocated."""
    with pytest.raises(DeviceError, match=r"10000000 requested.*available: up to 4096 processes"):
        CPUAccelerator().parse_devices(10_000_000)


def test_the_list_given_is_not_the_list_returned() -> None:
    """The caller's own list is neither kept nor changed."""
    given = [1, 0]
    parsed = _parse(given)
    parsed.append(5)
    assert given == [1, 0]
