"""The host's CPU as an accelerator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from core.accelerators import CPUAccelerator

_CPU = torch.device("cpu")


def test_every_process_uses_the_same_device() -> None:
    """Any number of processes share the CPU, whatever their indices."""
    accelerator = CPUAccelerator()
    assert accelerator.is_available() is True
    assert accelerator.auto_device_count() == 1
    assert accelerator.parse_devices(7) == list(range(7))
    assert accelerator.get_parallel_devices([0, 5, 2]) == [_CPU] * 3
    accelerator.setup_device(_CPU)


def test_random_state() -> None:
    """Putting the state back repeats the draws of torch's own generator."""
    accelerator = CPUAccelerator()
    state = accelerator.get_rng_state(_CPU)
    drawn = torch.rand(5)
    accelerator.set_rng_state(state, _CPU)
    assert torch.equal(torch.rand(5), drawn)


def test_collectives_and_autocast() -> None:
    """The CPU's collectives are gloo's, and its autocast is its own."""
    assert CPUAccelerator().process_group_backend(_CPU) == "gloo"
    assert CPUAccelerator().autocast_device_type(_CPU) == "cpu"
    CPUAccelerator().synchronize(_CPU)
    CPUAccelerator().empty_cache(_CPU)


def test_stats_follow_memory() -> None:
    """64 MiB more in use are 64 MiB more in the process's memory, in bytes; the host has more than that."""
    before = CPUAccelerator().get_device_stats("cpu")
    held = bytearray(b"\1" * (64 << 20))
    after = CPUAccelerator().get_device_stats(_CPU)
    assert len(held) * 0.9 < after["process_memory_bytes"] - before["process_memory_bytes"] < len(held) * 1.5
    assert after["process_cpu_seconds"] >= before["process_cpu_seconds"] > 0
    assert after["host_memory_bytes"] > after["host_memory_available_bytes"] > 0
    assert after["process_memory_bytes"] < after["host_memory_bytes"]
    assert after["host_load_processes"] >= 0


def test_stats_of_a_host_that_tells_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host does not tell is left out, and is not an error."""
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.delattr("os.getloadavg")
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert list(CPUAccelerator().get_device_stats("cpu")) == ["process_cpu_seconds"]


def test_the_package_is_torch_free() -> None:
    """Importing the package imports no torch."""
    code = "import sys, core.accelerators; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["False"]


def test_stats_of_a_host_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: psutil tells the memory, if it is installed. It is not here, so this is its interface."""
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=3))
    memory = SimpleNamespace(total=5, available=4)
    psutil = SimpleNamespace(Process=lambda: process, virtual_memory=lambda: memory)
    monkeypatch.setitem(sys.modules, "psutil", psutil)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    stats = CPUAccelerator().get_device_stats("cpu")
    names = ("process_memory_bytes", "host_memory_bytes", "host_memory_available_bytes")
    assert [stats[name] for name in names] == [3, 5, 4]
