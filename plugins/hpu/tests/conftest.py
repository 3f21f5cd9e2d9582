"""A simulated machine with two Gaudi cards, and stand-ins for Intel's library over simulated memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from declared import pytest_terminal_summary, torch_refuses_simulated_devices  # noqa: F401
from python_processes import run_python

from . import machine

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["ACME_DEVICES"] = "0"  # a process simulates one type of device
os.environ["HPU_DEVICES"] = "2"
for _name in ("HABANA_VISIBLE_MODULES", "HLS_MODULE_ID", "PT_HPU_LAZY_MODE"):
    os.environ.pop(_name, None)

COMPILER = next(filter(None, map(shutil.which, ("c++", "g++"))), None)

needs_simulation = pytest.mark.skipif(COMPILER is None, reason="the simulation is compiled by a C++ compiler")
_REFUSED = torch_refuses_simulated_devices()
needs_backward = pytest.mark.skipif(_REFUSED is not None, reason=str(_REFUSED))

RunScript = Callable[..., str]

_SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def cards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make this process run on a machine with two cards; gives the folder that makes others do, on ``PYTHONPATH``."""
    if COMPILER is None:
        pytest.skip("the simulation is compiled by a C++ compiler")
    root = machine.tree(tmp_path_factory.mktemp("root"), [0, 1])
    folder = machine.write(tmp_path_factory.mktemp("gaudi"), root)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    machine.pretend(str(root))
    return folder


@pytest.fixture
def run_script(cards: Path, tmp_path: Path) -> RunScript:
    """Run a script of ``scripts/`` in a separate process, on that machine; what it prints."""

    def run(name: str, *arguments: str, **environ: str) -> str:
        return run_python(_SCRIPTS / name, *arguments, cwd=tmp_path, env=environ).stdout

    return run
