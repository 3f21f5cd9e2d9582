"""Making a process take this machine for a Mac, with a simulated GPU; imports nothing but the standard library."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

__all__ = ["HIDDEN", "give_gpu", "pretend", "write"]

HIDDEN = "SIMULATED_MAC_WITHOUT_GPU"
"""The environment variable with which a process takes this machine for what it is; a real Mac has none that does."""

SESSION = """
try:
    import starting
except ModuleNotFoundError:
    pass
"""
"""What a session of tests has in its own ``sitecustomize``, if it has one."""
MACOS_14 = SimpleNamespace(sysname="Darwin", machine="arm64", release="23.6.0")

_genuine = os.uname


def pretend() -> None:
    """Let detection, and no one else, be told of macOS 14 on Apple silicon."""

    def uname() -> object:
        asking = sys._getframe(1).f_globals.get("__name__")
        is_mac = asking == "torch_hal_mps.detect" and HIDDEN not in os.environ
        return MACOS_14 if is_mac else _genuine()

    os.uname = uname  # type: ignore[assignment]


def give_gpu() -> None:
    """Give torch a simulated GPU, as Apple's has it at hand from the start; torch calls it when it is imported."""
    import acme_driver

    acme_driver.simulate("mps", 1)


def write(folder: Path) -> Path:
    """Make ``folder`` one that, on ``PYTHONPATH``, does both in every process."""
    (folder / "simulated_mac.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    code = "import simulated_mac\nsimulated_mac.pretend()\n" + SESSION
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    metadata = folder / "simulated_mac-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: simulated-mac\nVersion: 1.0\n", encoding="utf-8")
    points = "[torch.backends]\nmac = simulated_mac:give_gpu\n"
    (metadata / "entry_points.txt").write_text(points, encoding="utf-8")
    return folder
