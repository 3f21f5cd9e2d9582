"""Counting devices without torch_xla's runtime."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch_hal_xla import detect


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with torch_xla, no device, and no variable that speaks of one."""
    (tmp_path / "pci").mkdir()
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr(detect, "_PCI_DEVICES", tmp_path / "pci")
    monkeypatch.setattr(detect, "_DEVICE_FILES", tmp_path / "dev")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(os, "environ", {})
    return tmp_path


def add_pci(machine: Path, vendor: str, device: str) -> None:
    """Put a card on the bus."""
    card = machine / "pci" / f"0000:00:{len(list((machine / 'pci').iterdir())):02}.0"
    card.mkdir()
    (card / "vendor").write_text(f"{vendor}\n")
    (card / "device").write_text(f"{device}\n")


def test_none_without_torch_xla(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch_xla would run on is not a device where it is not installed."""
    add_pci(machine, "0x1ae0", "0x0063")
    assert detect.count() == 1
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert detect.count() == 0


def test_chips_on_the_bus(machine: Path) -> None:
    """A v3 chip has two devices and a v4 chip one; other cards, also Google's own, have none."""
    for vendor, device in (("0x1ae0", "0x0027"), ("0x1ae0", "0x005e"), ("0x1ae0", "0x0042"), ("0x10de", "0x0063")):
        add_pci(machine, vendor, device)
    assert detect.count() == 3


def test_device_files_where_the_bus_is_hidden(machine: Path) -> None:
    """In a container without the bus, ``/dev/accel<n>`` is a chip each."""
    for name in ("accel0", "accel1", "accelerated", "null"):
        (machine / "dev" / name).touch()
    assert detect.count() == 2


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 0),
        ({"PJRT_DEVICE": "TPU"}, 0),
        ({"TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1"}, 0),
        ({"PJRT_DEVICE": "TPU", "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1"}, 4),
        ({"PJRT_DEVICE": "TPU", "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1", "TPU_VISIBLE_CHIPS": "1,3"}, 2),
        # torch_xla itself leaves each process that it starts one chip.
        (
            {
                "PJRT_DEVICE": "TPU",
                "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
                "TPU_VISIBLE_CHIPS": "1",
                "PJRT_LOCAL_PROCESS_RANK": "1",
            },
            4,
        ),
        ({"PJRT_DEVICE": "cpu"}, 1),
        ({"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}, 4),
        ({"CPU_NUM_DEVICES": "4"}, 0),
        ({"PJRT_DEVICE": "NEURON"}, 1),
    ],
)
def test_variables(environ: dict[str, str], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind that ``PJRT_DEVICE`` names is counted; the CPU only if it is named, so that ``auto`` never takes it."""
    monkeypatch.setattr(os, "environ", environ)
    assert detect.count() == count


@pytest.mark.parametrize(
    "environ",
    [
        {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "four"},
        {"PJRT_DEVICE": "TPU", "TPU_CHIPS_PER_HOST_BOUNDS": "2x2"},
    ],
)
def test_what_is_no_number(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that cannot be read is an error which names it, and the accelerator is not available."""
    monkeypatch.setattr(os, "environ", environ)
    name = list(environ)[-1]
    with pytest.raises(ValueError, match=f"{name}='{environ[name]}'"):
        detect.count()


def test_who_started_the_process() -> None:
    """torch_xla started a process that has its rank among the variables, and no other."""
    assert detect.is_launched({"PJRT_LOCAL_PROCESS_RANK": "0"})
    assert not detect.is_launched({"RANK": "0", "PJRT_DEVICE": "TPU"})
