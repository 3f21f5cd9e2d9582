"""T0 and T1 of accelerators: what they report about hardware, which may be absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from torch_hal.accelerators import parse_devices
from torch_hal.errors import DeviceError
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.fresh import ask
from torch_hal_devkit.marks import not_run, skip_by_declaration, tier
from torch_hal_devkit.suites.base import reference
from torch_hal_devkit.suites.importing import probed
from torch_hal_devkit.suites.metadata import DETECTION_LIMIT

__all__ = ["REFUSED", "HardwareTests"]

AVAILABILITY_LIMIT = 10.0
"""Seconds that ``is_available`` may take."""

ACCEPTED: list[Any] = ["auto", -1, "-1", 1, 2, "2", " 2 ", [0], [1, 0], (0, 1), "1,", "1, 0"]
"""Valid values of ``devices=`` with two devices."""

REFUSED: list[Any] = [
    *(0, -2, True, 1.5, None, "", "0", "-2", "1-3", "abc", "AUTO", "cpu:0", "0,0", "[0]", "1.0"),
    *([], (), [0, 0], [True], [-1], ["0"], [0.0], {0}, {0: 0}, 10**30),
]
"""Values outside the grammar, or more devices than any machine has."""


class HardwareTests:
    """Tests of tiers T0 and T1 that need no device."""

    @tier("T0")
    def test_detection_is_declared(self, backend: BackendUnderTest) -> None:
        """The spec has a ``detect``, so that ``accelerator="auto"`` can reject it without importing the class."""
        spec = backend.spec
        if spec.detect is None:
            not_run("its spec declares no `detect`, so accelerator='auto' has to import its class. Better: a detect")

    @tier("T0")
    def test_detection_counts_devices(self, backend: BackendUnderTest) -> None:
        """``detect`` returns a number of devices in bounded time, without torch, and prints nothing."""
        function = backend.spec.detect
        if function is None:
            not_run("its spec declares no `detect`")
        answer = ask("torch_hal_devkit.probes:detected", function, limit=3 * DETECTION_LIMIT)
        assert answer.value["is_count"], f"{function}() returned {answer.value['answer']}. Expected: an integer >= 0"
        assert not answer.value["torch"], f"{function}() imports torch. Expected: no import of torch"
        assert answer.seconds <= DETECTION_LIMIT, (  # after torch, whose import alone may take longer
            f"{function}() took {answer.seconds:.1f} s. It must take at most {DETECTION_LIMIT:g} s"
        )
        assert not answer.output, f"{function}() prints {answer.output.strip()[:500]!r}. Expected: nothing"

    @tier("T1")
    def test_detection_and_class_agree(self, backend: BackendUnderTest) -> None:
        """``detect`` counts as many devices as the class does."""
        function = backend.spec.detect
        if function is None:
            not_run("its spec declares no `detect`")
        detected = ask("torch_hal_devkit.probes:detected", function, limit=DETECTION_LIMIT).value["answer"]
        counted = probed("availability", backend).value
        expected = counted["counts"][0] if counted["available"][0] == "True" else "0"
        assert detected == expected, (
            f"{function}() counts {detected} device(s), the class {expected}. Expected: the same number"
        )

    @tier("T1")
    def test_unsupported_has_reasons(self, backend: BackendUnderTest) -> None:
        """Each unsupported capability has a reason to show to users."""
        for capability, reason in backend.load().unsupported.items():
            assert isinstance(reason, str), (
                f"unsupported[{capability!r}] is {reason!r}. Expected: a text with the reason"
            )
            assert reason.strip(), f"unsupported[{capability!r}] is {reason!r}. Expected: a text with the reason"

    @tier("T1")
    def test_is_available(self, backend: BackendUnderTest) -> None:
        """``is_available`` returns a bool in bounded time, and the same one again."""
        answer = probed("availability", backend)
        _check_available(answer.value)

    @tier("T1")
    def test_counting_initializes_no_device(self, backend: BackendUnderTest) -> None:
        """``is_available`` and ``auto_device_count`` initialize no device, so that the process can still fork."""
        taken = probed("availability", backend).value["initialized"]
        assert taken == [], f"is_available() and auto_device_count() initialize {', '.join(taken)}. Expected: no device"

    @tier("T1")
    def test_devices_are_counted(self, backend: BackendUnderTest) -> None:
        """``auto_device_count`` returns an integer, at least 1 if the hardware is available."""
        answer = probed("availability", backend).value
        for count in answer["counts"]:
            assert count.isdecimal(), f"auto_device_count() returned {count}. Expected: an integer >= 0"
            assert (answer["available"][0] == "True") == (int(count) > 0), (
                f"is_available() returned {answer['available'][0]}, but auto_device_count() {count}"
            )

    @tier("T1")
    def test_without_devices(
        self, backend: BackendUnderTest, hide_devices: Mapping[str, str], devices: int | None
    ) -> None:
        """Without a device, ``is_available`` returns False and does not raise."""
        if backend.is_served:
            not_run("the name exists only where a device is present")
        present = probed("availability", backend).value["available"][0] == "True"
        if present and devices is None:
            skip_by_declaration("device_limit() is None: any number of processes shares the hardware")
        if present and not hide_devices:
            pytest.fail(
                "the kit does not know how to hide the devices of this machine. Pass --hide-devices NAME=VALUE with a "
                "variable of the driver, or override the suite's fixture `hide_devices`. If no variable does it, list "
                "this test in the file of --expected-failures",
                pytrace=False,
            )
        answer = ask("torch_hal_devkit.probes:availability", reference(backend), environ=hide_devices).value
        _check_available(answer)
        assert answer["available"][0] == "False", (
            f"is_available() returned True with {dict(hide_devices)}. Expected: False"
        )
        assert answer["counts"][0] == "0", (
            f"auto_device_count() returned {answer['counts'][0]} with {dict(hide_devices)}. Expected: 0"
        )

    @tier("T1")
    def test_is_available_after_fork(self, backend: BackendUnderTest) -> None:
        """A process forked after a call of ``is_available`` gets the same result."""
        here, forked = probed("forked", backend).value
        assert forked == here, f"is_available() returned {here}, but in a process forked afterwards: {forked}"

    @tier("T1")
    @pytest.mark.parametrize("value", ACCEPTED, ids=repr)
    def test_parse_devices_takes_the_grammar(self, backend: BackendUnderTest, value: Any) -> None:
        """``parse_devices`` takes the indices that core parses from ``devices=``, with two simulated devices."""
        indices = parse_devices(value, all_devices=2, limit=2, accelerator=backend.name)
        taken = _with_two_devices(backend).parse_devices(list(indices))
        assert taken is not None, f"parse_devices({indices}) returned None. Expected: what get_parallel_devices takes"

    @tier("T1")
    @pytest.mark.parametrize("value", REFUSED, ids=repr)
    def test_parse_devices_refuses_other_values(self, backend: BackendUnderTest, value: Any) -> None:
        """``parse_devices`` never turns a value outside the grammar into devices, with two simulated devices.

        It raises DeviceError, as the base class does; an override that leaves that to core returns the value.
        """
        accelerator = _with_two_devices(backend)
        try:
            taken = accelerator.parse_devices(value)
        except DeviceError:
            return
        except Exception as error:
            raise AssertionError(
                f"parse_devices({value!r}) raises {error!r}. Expected: core.errors.DeviceError"
            ) from error
        assert taken is value, f"parse_devices({value!r}) returned {taken!r}. Expected: core.errors.DeviceError"


def _check_available(answer: Mapping[str, Any]) -> None:
    first, second = answer["available"]
    assert first in ("True", "False"), f"is_available() returned {first}. Expected: True or False"
    assert second == first, f"is_available() returned {first} and then {second}. Expected: the same"
    seconds = answer["seconds"]
    assert seconds <= AVAILABILITY_LIMIT, (
        f"is_available() takes {seconds:.1f} s. Expected: at most {AVAILABILITY_LIMIT:g} s"
    )


def _with_two_devices(backend: BackendUnderTest) -> Any:
    """The accelerator with two simulated devices, of which only the indices are used."""
    cls = backend.load()
    pretended = {
        "name": backend.name,
        "is_available": lambda self: True,
        "auto_device_count": lambda self: 2,
        "device_limit": lambda self: 2,
    }
    return type(cls.__name__, (cls,), pretended)(**backend.spec.init_args)
