"""A simulated machine with two Intel GPUs: a driver library that counts, and memory under torch's type ``xpu``."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from declared import pytest_terminal_summary, torch_refuses_simulated_devices  # noqa: F401
from pretending import pretend, write_machine
from torch_hal_xpu import level_zero

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["ACME_DEVICES"] = "0"  # a process simulates one type of device
for _name in ("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"):
    os.environ.pop(_name, None)

COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc"))), None)
SIMULATION = next(filter(None, map(shutil.which, ("c++", "g++"))), None)

needs_simulation = pytest.mark.skipif(SIMULATION is None, reason="the simulation is compiled by a C++ compiler")
_REFUSED = torch_refuses_simulated_devices()
needs_backward = pytest.mark.skipif(_REFUSED is not None, reason=str(_REFUSED))


def render_node(root: Path, number: int = 128, vendor: str = "0x8086", device_file: bool = True) -> Path:
    """Put the kernel's files of a GPU under ``root``."""
    folder = root / f"sys/class/drm/renderD{number}/device"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n", "ascii")
    (root / "dev/dri").mkdir(parents=True, exist_ok=True)
    if device_file:
        (root / f"dev/dri/renderD{number}").touch()
    return root


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated library of the driver."""
    if COMPILER is None:
        pytest.skip("the simulated library is compiled by a C compiler")
    library = tmp_path_factory.mktemp("level-zero") / "libze_loader.so.1"
    source = Path(__file__).with_name("fake_level_zero.c")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=240)
    return library


@pytest.fixture(scope="session")
def machine(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make this process, and those that it starts, run on a machine with two GPUs."""
    if SIMULATION is None:
        pytest.skip("the simulation is compiled by a C++ compiler")
    root = render_node(tmp_path_factory.mktemp("root"))
    os.environ["FAKE_GPUS"] = os.environ["SIMULATED_GPUS"] = "dd"
    modules = (
        f"{{'torch_hal_xpu.detect': {{'ROOT': {str(root)!r}}}, "
        f"'torch_hal_xpu.level_zero': {{'NAME': {str(library)!r}}}, "
        "'torch_hal_xpu.build': {'has_xpu': lambda: True}}"
    )
    autoload = (
        "import os, acme_driver, torch.distributed\n"
        # torch's builds for the CPU have no XCCL, and let no other backend take its name.
        "torch.distributed.Backend.default_device_backend_map.pop('xpu', None)\n"
        "acme_driver.simulate('xpu', len(os.environ['SIMULATED_GPUS']), collectives='accl')"
    )
    folder = write_machine(tmp_path_factory.mktemp("machine"), "simulated_xpu", f"pretend({modules})\n", autoload)
    pretend(eval(modules))
    exec(autoload)
    level_zero._initialized = False
    return folder
