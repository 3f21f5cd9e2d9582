"""What the package says of itself before torch is there, and which IPUs it finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from torch_hal_ipu import detect, plugin


def test_names_in_metadata_are_those_of_the_hooks() -> None:
    """The entry points name exactly the backends that the hooks hand over."""
    for group, specs in (
        ("core.accelerators", plugin.core_accelerators()),
        ("core.strategies", plugin.core_strategies()),
    ):
        keys = {point.name for point in entry_points(group=group) if point.value.startswith("torch_hal_ipu.")}
        assert keys == {spec.name for spec in specs} == {"ipu"}


def test_hooks_and_detection_are_light() -> None:
    """Specs and detection need neither torch nor poptorch."""
    code = (
        "import sys; from torch_hal_ipu import detect, plugin; plugin.core_accelerators(); plugin.core_strategies(); "
        "assert detect.count() == 1; assert not {'torch', 'poptorch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The devices' folder of a machine with no IPU and no partition."""
    for name in ("IPUOF_VIPU_API_PARTITION_ID", "IPUOF_CONFIG_PATH", "POPTORCH_IPU_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(detect, "DEVICES", tmp_path / "dev")
    (tmp_path / "dev").mkdir()
    return tmp_path / "dev"


def test_cards_are_counted(machine: Path) -> None:
    """Each ``/dev/ipu<n>`` is an IPU; the further files of a card are none."""
    assert detect.count() == 0
    for name in ("ipu0", "ipu0_ex", "ipu0_mailbox", "ipu1", "ipu1_mem", "null"):
        (machine / name).touch()
    assert detect.count() == 2


def test_partitions(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition is there by its name, by a file that is named, or by one in the home folder."""
    config = machine / "p.conf"
    monkeypatch.setenv("IPUOF_CONFIG_PATH", str(config))
    with pytest.raises(FileNotFoundError, match="IPUOF_CONFIG_PATH"):
        detect.count()
    config.touch()
    assert detect.count() == 1
    monkeypatch.delenv("IPUOF_CONFIG_PATH")
    assert detect.count() == 0
    folder = Path.home() / ".ipuof.conf.d"
    folder.mkdir(parents=True)
    (folder / "p0.conf").touch()
    assert detect.count() == 1
    (folder / "p0.conf").unlink()
    monkeypatch.setenv("IPUOF_VIPU_API_PARTITION_ID", "p4")
    assert detect.count() == 1


def test_the_ipu_model(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where poptorch is told to simulate an IPU, that is the one there is."""
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "0")
    assert detect.count() == 0
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    assert detect.count() == 1


def test_how_many_a_run_has(machine: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Cards are as many as are counted, a partition's IPUs as many as poptorch says; what can't be told is none."""
    from torch_hal_ipu.accelerator import IPUAccelerator

    accelerator = IPUAccelerator()
    assert not accelerator.is_available()
    assert accelerator.auto_device_count() == 0
    monkeypatch.setenv("IPUOF_VIPU_API_PARTITION_ID", "p8")
    monkeypatch.setenv("IPU_DEVICES", "8")
    assert accelerator.auto_device_count() == 8
    for index in range(3):
        (machine / f"ipu{index}").touch()
    assert accelerator.auto_device_count() == 3
    monkeypatch.setenv("IPUOF_CONFIG_PATH", "not there")
    assert accelerator.auto_device_count() == 3
    for index in range(3):
        (machine / f"ipu{index}").unlink()
    assert accelerator.is_available() is False
    assert "counting IPUs failed" in caplog.text


def test_it_is_listed() -> None:
    """``python -m core.list --probe`` shows that there are IPUs, that there are none, or why that can't be said."""
    assert _probed()["state"] == "available"
    assert _probed(IPUOF_VIPU_API_PARTITION_ID="")["state"] == "unavailable"
    failed = _probed(IPUOF_CONFIG_PATH="not there")
    assert failed["state"] == "failed"
    assert "IPUOF_CONFIG_PATH='not there'" in json.dumps(failed)


def _probed(**environ: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "core.list", "--probe", "--json"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    rows = json.loads(done.stdout)["backends"]
    (row,) = (row for row in rows if (row["kind"], row["name"]) == ("accelerator", "ipu"))
    return dict(row)


def test_without_poptorch(tmp_path: Path) -> None:
    """Where poptorch cannot be imported, asking for an IPU says so."""
    (tmp_path / "poptorch.py").write_text("raise ImportError('Unable to import PopTorch')")
    code = "from core import Trainer; Trainer(accelerator='ipu', devices=1)"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 1
    assert "importing poptorch failed: ImportError: Unable to import PopTorch. Enable a Poplar SDK" in done.stderr
