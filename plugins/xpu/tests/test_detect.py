"""Which GPUs are counted, on simulated drivers; nothing here imports torch."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from torch_hal_xpu import build, detect, level_zero, plugin

from .conftest import render_node


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an Intel GPU, its driver, and a torch for it; gives the root of its file system."""
    monkeypatch.setattr(level_zero, "NAME", str(library))
    monkeypatch.setattr(build, "has_xpu", lambda: True)
    monkeypatch.setattr(detect, "ROOT", str(tmp_path))
    return render_node(tmp_path)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [("", 0), ("d", 1), ("ddd", 3), ("i", 1), ("did", 2), ("ii", 2), ("dn", 1), ("n", 0), ("d|dd", 3), ("i|d", 1)],
)
def test_gpus_are_counted_as_by_torch(
    driver: Path, monkeypatch: pytest.MonkeyPatch, devices: str, expected: int
) -> None:
    """Discrete GPUs of all drivers count; integrated ones if there is no other; NPUs never."""
    monkeypatch.setenv("FAKE_GPUS", devices)
    assert detect.count() == expected


def test_without_a_gpu_no_driver_is_loaded(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another vendor's GPU, or a GPU of which a container has no device file, is none: the driver is not asked."""
    monkeypatch.setattr(level_zero, "gpus", lambda: pytest.fail("asked"))
    for number, facts in enumerate([{}, {"vendor": "0x10de"}, {"device_file": False}]):
        root = tmp_path / f"other{number}"
        monkeypatch.setattr(detect, "ROOT", str(render_node(root, **facts) if facts else root))  # type: ignore[arg-type]
        assert detect.count() == 0


def test_failures_say_what_to_do(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that fails, a missing loader and a torch without XPU are errors that say what to do."""
    monkeypatch.setenv("FAKE_GPUS", "dd")
    monkeypatch.setattr(build, "has_xpu", lambda: False)
    with pytest.raises(RuntimeError, match=r"found 2 Intel GPU.*torch is built without XPU. Install"):
        detect.count()
    monkeypatch.setenv("FAKE_ZE_STATUS", "70000001")
    with pytest.raises(RuntimeError, match="zeInit failed with status 0x70000001"):
        detect.count()
    monkeypatch.setenv("FAKE_ZE_STATUS", "78000001")
    assert detect.count() == 0
    monkeypatch.setattr(level_zero, "NAME", "libze_loader-of-no-machine.so")
    with pytest.raises(RuntimeError, match=r"found an Intel GPU, but not libze_loader.*Install Intel's GPU driver"):
        detect.count()


def test_the_build_of_torch_is_read_from_its_version_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file says whether torch is built for XPU; an older one without the line counts as built for it."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for text, expected in [
        ("xpu: Optional[str] = None\n", False),
        ("cuda = None\nxpu: Optional[str] = '20250302'\n", True),
        ("", True),
    ]:
        (tmp_path / "torch/version.py").write_text(text)
        assert build.has_xpu() is expected


def test_hooks_and_detection_import_no_torch() -> None:
    """Metadata, hooks and the public name agree; none of that, nor counting, imports torch."""
    keys = [point.name for point in entry_points(group="core.accelerators") if point.value == "torch_hal_xpu.plugin"]
    assert keys == [spec.name for spec in plugin.core_accelerators()] == ["xpu"]
    code = (
        "import sys, torch_hal_xpu; from torch_hal_xpu import detect, plugin\n"
        "plugin.core_accelerators(); detect.count(); assert 'torch' not in sys.modules\n"
        "assert torch_hal_xpu.XPUAccelerator.name == 'xpu'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
