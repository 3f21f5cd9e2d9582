"""A simulated machine with two Ascend NPUs, and a stand-in for ``torch_npu`` over simulated memory."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from pretending import pretend, write_machine

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["ACME_DEVICES"] = "0"  # a process simulates one type of device
os.environ.pop("ASCEND_RT_VISIBLE_DEVICES", None)

SIMULATION = next(filter(None, map(shutil.which, ("c++", "g++"))), None)

needs_simulation = pytest.mark.skipif(SIMULATION is None, reason="the simulation is compiled by a C++ compiler")

_TORCH_NPU = """\
import acme_driver

acme_driver.simulate("npu", 2, collectives="hccl")
"""


def device_files(root: Path, count: int) -> Path:
    """Put the driver's device files under ``root``."""
    (root / "dev").mkdir(parents=True)
    for name in [*map(str, range(count)), "_manager"]:
        (root / f"dev/davinci{name}").touch()
    return root


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make this process, and those that it starts, run on a machine with two NPUs and ``torch_npu``."""
    if SIMULATION is None:
        pytest.skip("the simulation is compiled by a C++ compiler")
    root = device_files(tmp_path_factory.mktemp("root"), 2)
    code = f"pretend({{'torch_hal_npu.detect': {{'ROOT': {str(root)!r}}}}})\n"
    folder = write_machine(tmp_path_factory.mktemp("machine"), "simulated_npu", code, "import torch_npu")
    (folder / "torch_npu.py").write_text(_TORCH_NPU, "utf-8")
    pretend({"torch_hal_npu.detect": {"ROOT": str(root)}})

    sys.path.insert(0, str(folder))
    return folder
