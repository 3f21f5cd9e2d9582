"""T0 and T1 of accelerators: what they say of their hardware, which need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from core.accelerators import parse_devices
from core.errors import DeviceError
from core.testing.backend import BackendUnderTest
from core.testing.fresh import ask
from core.testing.suites.base import reference
from core.testing.suites.importing import asked
from core.testing.suites.metadata import DETECTION_LIMIT
from core.testing.tiers import not_run, tier

__all__ = ["REFUSED", "HardwareTests"]

AVAILABILITY_LIMIT = 10.0
"""Seconds that ``is_available`` may take."""

ACCEPTED: list[Any] = ["auto", -1, "-1", 1, 2, "2", " 2 ", [0], [1, 0], (0, 1), "1,", "1, 0"]
"""Words of the grammar, where two devices are there."""

REFUSED: list[Any] = [
    *(0, -2, True, 1.5, None, "", "0", "-2", "1-3", "abc", "AUTO", "cpu:0", "0,0", "[0]", "1.0"),
    *([], (), [0, 0], [True], [-1], ["0"], [0.0], {0}, {0: 0}, 10**30),
]
"""Outside of the grammar, or more than any machine has."""


class HardwareTests:
    """Tests of tiers T0 and T1 that need no device."""

    @tier("T0")
    def test_detection_is_declared(self, backend: BackendUnderTest) -> None:
        """The spec has a ``detect``, so that ``accelerator="auto"`` need not import the class to pass over it."""
        spec = backend.spec
        if spec.detect is None:
            not_run(
                "its spec declares no `detect`: to choose among accelerators, its class is imported. Better: a detect"
            )

    @tier("T0")
    def test_detection_answers(self, backend: BackendUnderTest) -> None:
        """``detect`` gives a number of devices in bounded time, without torch, and prints nothing."""
        function = backend.spec.detect
        if function is None:
            not_run("its spec declares no `detect`")
        answer = ask("core.testing.questions:detected", function, limit=DETECTION_LIMIT)
        assert answer.value["is_count"], f"{function}() gives {answer.value['answer']}. Expected: a whole number from 0"
        assert not answer.value["torch"], f"{function}() imports torch. Expected: it is torch-free"
        assert not answer.output, f"{function}() prints {answer.output.strip()[:500]!r}. Expected: nothing"

    @tier("T1")
    def test_detection_and_class_agree(self, backend: BackendUnderTest) -> None:
        """``detect`` counts as many devices as the class does."""
        function = backend.spec.detect
        if function is None:
            not_run("its spec declares no `detect`")
        detected = ask("core.testing.questions:detected", function, limit=DETECTION_LIMIT).value["answer"]
        counted = asked("availability", backend).value
        expected = counted["counts"][0] if counted["available"][0] == "True" else "0"
        assert detected == expected, (
            f"{function}() counts {detected} device(s), the class {expected}. Expected: as many"
        )

    @tier("T1")
    def test_what_it_lacks_has_a_reason(self, backend: BackendUnderTest) -> None:
        """Each capability that it declares to lack comes with the reason that users are shown."""
        for word, reason in backend.load().lacks.items():
            assert isinstance(reason, str), f"lacks[{word!r}] is {reason!r}. Expected: a reason, in words"
            assert reason.strip(), f"lacks[{word!r}] is {reason!r}. Expected: a reason, in words"

    @tier("T1")
    def test_is_available_answers(self, backend: BackendUnderTest) -> None:
        """``is_available`` gives a truth value in bounded time, the same when it is asked again."""
        answer = asked("availability", backend)
        _check_available(answer.value)

    @tier("T1")
    def test_asking_takes_no_device(self, backend: BackendUnderTest) -> None:
        """``is_available`` and ``auto_device_count`` take no device into use: others may want to fork first."""
        taken = asked("availability", backend).value["initialized"]
        assert taken == [], f"is_available() and auto_device_count() initialize {', '.join(taken)}. Expected: no device"

    @tier("T1")
    def test_devices_are_counted(self, backend: BackendUnderTest) -> None:
        """``auto_device_count`` gives a whole number, at least 1 where the hardware is available."""
        answer = asked("availability", backend).value
        for count in answer["counts"]:
            assert count.isdecimal(), f"auto_device_count() gives {count}. Expected: a whole number from 0"
            assert (answer["available"][0] == "True") == (int(count) > 0), (
                f"is_available() gives {answer['available'][0]}, but auto_device_count() {count}"
            )

    @tier("T1")
    def test_without_devices(self, backend: BackendUnderTest, hidden: Mapping[str, str]) -> None:
        """Where no device is there, ``is_available`` says so; it does not raise."""
        if backend.is_served:
            not_run("it is a further name of a backend that serves it only where there is a device")
        if not hidden:
            not_run("nobody said how devices are hidden. Valid: --hide-devices NAME=VALUE")
        answer = ask("core.testing.questions:availability", reference(backend), environ=hidden).value
        _check_available(answer)
        assert answer["available"][0] == "False", f"is_available() gives True with {dict(hidden)}. Expected: False"
        assert answer["counts"][0] == "0", (
            f"auto_device_count() gives {answer['counts'][0]} with {dict(hidden)}. Expected: 0"
        )

    @tier("T1")
    def test_asking_is_fork_safe(self, backend: BackendUnderTest) -> None:
        """A process forked after ``is_available`` was asked is answered the same."""
        here, there = asked("forked", backend).value
        assert there == here, f"is_available() gives {here}, but in a process forked afterwards: {there}"

    @tier("T1")
    @pytest.mark.parametrize("word", ACCEPTED, ids=repr)
    def test_it_takes_the_grammar_of_devices(self, backend: BackendUnderTest, word: Any) -> None:
        """``parse_devices`` takes the indices that core makes of ``devices=``; two devices are pretended."""
        indices = parse_devices(word, all_devices=2, limit=2, accelerator=backend.name)
        taken = _with_two_devices(backend).parse_devices(list(indices))
        assert taken is not None, f"parse_devices({indices}) gives None. Expected: what get_parallel_devices takes"

    @tier("T1")
    @pytest.mark.parametrize("word", REFUSED, ids=repr)
    def test_it_makes_nothing_of_other_words(self, backend: BackendUnderTest, word: Any) -> None:
        """``parse_devices`` never makes devices out of a word outside of the grammar; two devices are pretended.

        It raises DeviceError, as the base class does; an override that leaves that to core hands the word back.
        """
        accelerator = _with_two_devices(backend)
        try:
            taken = accelerator.parse_devices(word)
        except DeviceError:
            return
        except Exception as error:
            raise AssertionError(
                f"parse_devices({word!r}) raises {error!r}. Expected: core.errors.DeviceError"
            ) from error
        assert taken is word, f"parse_devices({word!r}) gives {taken!r}. Expected: core.errors.DeviceError"


def _check_available(answer: Mapping[str, Any]) -> None:
    first, second = answer["available"]
    assert first in ("True", "False"), f"is_available() gives {first}. Expected: True or False"
    assert second == first, f"is_available() gives {first} and then {second}. Expected: the same"
    seconds = answer["seconds"]
    assert seconds <= AVAILABILITY_LIMIT, f"is_available() takes {seconds:.1f} s. Expected: {AVAILABILITY_LIMIT:g} s"


def _with_two_devices(backend: BackendUnderTest) -> Any:
    """The accelerator, with two devices of which nobody asks more than their indices."""
    cls = backend.load()
    pretended = {
        "name": backend.name,
        "is_available": lambda self: True,
        "auto_device_count": lambda self: 2,
        "device_limit": lambda self: 2,
    }
    return type(cls.__name__, (cls,), pretended)(**backend.spec.init_args)
