"""Which cards there are, on trees of the driver's files."""

from __future__ import annotations

import importlib.util
import timeit
from collections.abc import Callable
from pathlib import Path

import pytest
from torch_hal_hpu import detect

from . import machine

Machine = Callable[..., None]


@pytest.fixture
def this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Make this a machine with cards on the modules given."""
    monkeypatch.setattr(detect, "ROOT", str(tmp_path))
    monkeypatch.delenv("HABANA_VISIBLE_MODULES", raising=False)

    def make(*modules: int | None, device_type: str = "GAUDI2", old: bool = False) -> None:
        machine.tree(tmp_path, modules, device_type=device_type, old=old)

    return make


def test_a_machine_without_cards(this_machine: Machine) -> None:
    """There are none where the driver shows nothing, which takes less than a tenth of a millisecond to tell."""
    assert (detect.count(), detect.modules(), detect.generation()) == (0, [], "")
    assert min(timeit.repeat(detect.count, number=1, repeat=50)) < 1e-4


@pytest.mark.parametrize("old", [False, True])
def test_cards_are_counted(this_machine: Machine, tmp_path: Path, old: bool) -> None:
    """Cards of Intel's driver count, as Linux has it or an older one; other accelerators and control devices do not."""
    this_machine(3, 1, old=old)
    other = tmp_path / "sys/class/accel/accel7/device"
    other.mkdir(parents=True)
    (other / "vendor").write_text("0x8086\n", encoding="ascii")
    (tmp_path / "sys/class/habanalabs/hl_controlD0").mkdir(parents=True)
    assert detect.modules() == [1, 3]
    assert detect.count() == 2
    assert detect.generation() == "GAUDI2"


def test_a_container_has_those_that_it_was_given(this_machine: Machine, tmp_path: Path) -> None:
    """A card without a device file is another container's."""
    this_machine(0, 1, 2)
    (tmp_path / "dev/accel/accel1").unlink()
    assert detect.modules() == [0, 2]


@pytest.mark.parametrize(
    ("said", "expected"),
    [("", [0, 1, 2, 5]), ("5,0", [5, 0]), (" 1 , 2 ", [1, 2]), ("2,2", [2]), ("7", []), ("0,7", [0])],
)
def test_visible_modules(
    this_machine: Machine, monkeypatch: pytest.MonkeyPatch, said: str, expected: list[int]
) -> None:
    """``HABANA_VISIBLE_MODULES`` leaves those that it names, in its order."""
    this_machine(0, 1, 2, 5)
    monkeypatch.setenv("HABANA_VISIBLE_MODULES", said)
    assert detect.modules() == expected
    assert detect.count() == len(expected)


@pytest.mark.parametrize("said", ["all", "0,", "-1", "0;1"])
def test_visible_modules_that_are_none(this_machine: Machine, said: str) -> None:
    """What is not a list of numbers is refused, by name."""
    this_machine(0, 1)
    with pytest.raises(ValueError, match=f"HABANA_VISIBLE_MODULES='{said}'"):
        detect.modules({"HABANA_VISIBLE_MODULES": said})


def test_a_driver_that_does_not_tell_modules(this_machine: Machine) -> None:
    """Then the cards are counted."""
    this_machine(None, None)
    assert detect.modules({"HABANA_VISIBLE_MODULES": "1"}) == [1]
    assert detect.modules({}) == [0, 1]


def test_cards_without_the_library(this_machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards that cannot be used for want of Intel's library are an error that says so; the class then has none."""
    this_machine(0, 1)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if "habana" in name else find_spec(name, *a))
    with pytest.raises(RuntimeError, match="found 2 Gaudi card\\(s\\), but habana_frameworks is not installed"):
        detect.count()
    from torch_hal_hpu import HPUAccelerator

    from torch_hal.errors import BackendError

    assert not HPUAccelerator().is_available()
    with pytest.raises(BackendError, match="habana_frameworks is not installed"):
        HPUAccelerator().auto_device_count()
