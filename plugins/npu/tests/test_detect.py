"""Which NPUs are counted, from the driver's files; nothing here imports torch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from torch_hal_npu import detect, plugin

from .conftest import device_files


@pytest.mark.parametrize(
    ("count", "visible", "expected"),
    [
        (3, None, [0, 1, 2]),
        (3, "2,0", [2, 0]),
        (3, "1, 1", [1]),
        (3, "0,7,1", [0]),  # what follows a number that does not exist is ignored
        (3, "", []),
        (0, "0", []),
        (0, None, []),
    ],
)
def test_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, visible: str | None, expected: list[int]
) -> None:
    """The device files count, in the order of ASCEND_RT_VISIBLE_DEVICES."""
    monkeypatch.setattr(detect, "ROOT", str(device_files(tmp_path, count)))
    assert detect.devices({} if visible is None else {detect.VISIBLE: visible}) == expected


def test_errors_and_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a folder of devices there is none; NPUs without torch_npu, and a variable that is no list, are errors."""
    monkeypatch.setattr(detect, "ROOT", str(tmp_path / "nowhere"))
    assert detect.count() == 0
    monkeypatch.setattr(detect, "ROOT", str(device_files(tmp_path / "root", 2)))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"found 2 Ascend NPU.*torch_npu is not installed. Install"):
        detect.count()
    with pytest.raises(ValueError, match=r"ASCEND_RT_VISIBLE_DEVICES='0-1': not a list of NPUs. Valid: numbers"):
        detect.devices({detect.VISIBLE: "0-1"})


def test_hooks_and_detection_import_no_torch() -> None:
    """Metadata, hooks and the public name agree; none of that, nor counting, imports torch."""
    keys = [point.name for point in entry_points(group="core.accelerators") if point.value == "torch_hal_npu.plugin"]
    assert keys == [spec.name for spec in plugin.core_accelerators()] == ["npu"]
    code = (
        "import sys, torch_hal_npu; from torch_hal_npu import detect, plugin\n"
        "plugin.core_accelerators(); detect.devices(); assert 'torch' not in sys.modules\n"
        "assert torch_hal_npu.NPUAccelerator.name == 'npu'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
