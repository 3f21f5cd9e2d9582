"""What the package says of itself before torch is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import timeit
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch_hal_mps
from torch_hal_mps import detect, plugin


def test_names_in_metadata_are_those_of_the_hooks() -> None:
    """The entry points name exactly the backends that the hooks hand over."""
    keys = [point.name for point in entry_points(group="core.accelerators") if point.value == "torch_hal_mps.plugin"]
    assert keys == [spec.name for spec in plugin.core_accelerators()] == ["mps"]


def test_public_names() -> None:
    """The accelerator's class can be had from the package, and a wrong name is refused as any module refuses it."""
    assert torch_hal_mps.MPSAccelerator.__name__ == "MPSAccelerator"
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        getattr(torch_hal_mps, "Nothing")  # noqa: B009


@pytest.mark.parametrize(
    ("sysname", "machine", "release", "expected"),
    [
        ("Darwin", "arm64", "23.0.0", 1),  # macOS 14
        ("Darwin", "arm64", "25.2.0", 1),
        ("Darwin", "arm64", "22.6.0", 0),  # macOS 13
        ("Darwin", "arm64", "unknown", 0),
        ("Darwin", "x86_64", "23.0.0", 0),
        ("Linux", "arm64", "23.0.0", 0),
    ],
)
def test_detection(monkeypatch: pytest.MonkeyPatch, sysname: str, machine: str, release: str, expected: int) -> None:
    """There is one on Apple silicon with macOS 14 or newer, and none anywhere else."""
    system = SimpleNamespace(sysname=sysname, machine=machine, release=release)
    monkeypatch.setattr(os, "uname", lambda: system, raising=False)
    assert detect.count() == expected


def test_detection_where_there_is_no_uname(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system that has no such call there is none."""
    monkeypatch.delattr(os, "uname")
    assert detect.count() == 0


def test_detection_takes_microseconds() -> None:
    """Counting takes less than a tenth of a millisecond."""
    assert min(timeit.repeat(detect.count, number=1, repeat=50)) < 1e-4


def test_hooks_and_detection_import_no_torch() -> None:
    """Handing over specs and counting takes a process that never imports torch."""
    code = (
        "import sys; import torch_hal_mps; from torch_hal_mps import detect, plugin\n"
        "plugin.core_accelerators(); detect.count()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_it_is_listed_where_there_is_none() -> None:
    """``python -m core.list --probe`` shows that this machine, which is not a Mac, has none."""
    if sys.platform == "darwin":
        pytest.skip("this is a Mac")
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(entry for entry in entries if not Path(entry, "simulated_mac.py").exists())
    done = subprocess.run(
        [sys.executable, "-m", "core.list", "--probe", "--json"],
        env={**os.environ, "CORE_PLUGINS": "torch-hal-mps", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    (row,) = (row for row in json.loads(done.stdout)["backends"] if row["name"] == "mps")
    assert row["state"] == "unavailable"
