"""A simulated Mac: this process and those that it starts take themselves for one, and torch has a simulated GPU."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from declared import pytest_terminal_summary, torch_refuses_simulated_devices  # noqa: F401

from . import machine

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["ACME_DEVICES"] = "0"  # a process simulates one type of device

COMPILER = next(filter(None, map(shutil.which, ("c++", "g++"))), None)

needs_simulation = pytest.mark.skipif(COMPILER is None, reason="the simulation is compiled by a C++ compiler")
_REFUSED = torch_refuses_simulated_devices()
needs_backward = pytest.mark.skipif(_REFUSED is not None, reason=str(_REFUSED))


@pytest.fixture(scope="session")
def mac(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make this process run on a Mac; gives the folder that makes others do, on their ``PYTHONPATH``."""
    if COMPILER is None:
        pytest.skip("the simulation is compiled by a C++ compiler")
    folder = machine.write(tmp_path_factory.mktemp("mac"))
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    machine.pretend()
    machine.give_gpu()
    return folder
