"""Simulated cards for dp and ddp2, simulated drivers for detection, and the mark of tests that need a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from torch_hal_cuda import build, detect, nvml

_COMPILER = next(filter(None, map(shutil.which, ("c++", "g++"))), None)

os.environ["ACME_DEVICES"] = "2" if _COMPILER else "0"  # before torch is imported, which loads their backend
os.environ.setdefault("OMP_NUM_THREADS", "1")

needs_compiler = pytest.mark.skipif(_COMPILER is None, reason="the simulation is compiled by a C++ compiler")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; README's script runs first, as it takes a free GPU."""
    if detect.count() > 0:
        items.sort(key=lambda item: item.path.stem != "test_readme")
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="declared to need a CUDA GPU: this machine has none"))


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a management library whose GPUs are those of ``FAKE_NVML``; see fake_nvml.cpp."""
    if _COMPILER is None:
        pytest.skip("the simulated library is compiled by a C++ compiler")
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).parent / "fake_nvml.cpp"
    subprocess.run([_COMPILER, "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=240)
    return library


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """No management library, whatever this machine has, and none of the variables that choose GPUs."""
    monkeypatch.setattr(nvml, "NAME", "libnvidia-ml-of-no-machine.so")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def built_for(no_driver: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the installed torch one that is built for ``cuda``, ``hip`` or ``cpu``."""
    return lambda kind: monkeypatch.setattr(build, "installed", lambda: kind)


@pytest.fixture
def driver(
    nvml_library: Path, built_for: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], str]:
    """Make this a machine with NVIDIA's driver and these GPUs; gives where its file system begins."""

    def install(gpus: str) -> str:
        built_for("cuda")
        monkeypatch.setattr(nvml, "NAME", str(nvml_library))
        monkeypatch.setenv("FAKE_NVML", gpus)
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / "nvidiactl").touch()
        return str(tmp_path)

    return install
