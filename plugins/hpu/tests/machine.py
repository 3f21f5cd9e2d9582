"""Making a process take this machine for one with Gaudi cards; imports nothing but the standard library."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["autoload", "pretend", "tree", "write"]

_DETECT = "torch_hal_hpu.detect"
SESSION = """
try:
    import starting
except ModuleNotFoundError:
    pass
"""
"""What a session of tests has in its own ``sitecustomize``, if it has one."""


class _Finder(importlib.abc.MetaPathFinder):
    """Lets detection, when it is imported, look for the driver's files elsewhere."""

    def __init__(self, root: str) -> None:
        self.root = root

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != _DETECT:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        genuine, root = spec.loader.exec_module, self.root

        def exec_module(module: ModuleType) -> None:
            genuine(module)
            module.ROOT = root  # type: ignore[attr-defined]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def pretend(root: str) -> None:
    """Let detection, and no one else, look for the driver's files under ``root``."""
    if _DETECT in sys.modules:
        sys.modules[_DETECT].ROOT = root  # type: ignore[attr-defined]
    sys.meta_path.insert(0, _Finder(root))


def tree(root: Path, modules: Sequence[int | None], *, device_type: str = "GAUDI2", old: bool = False) -> Path:
    """Put the driver's files of cards on these modules under ``root``; ``None`` for a driver that does not tell."""
    kind, prefix, devices = ("habanalabs", "hl", "dev") if old else ("accel", "accel", "dev/accel")
    (root / devices).mkdir(parents=True, exist_ok=True)
    for number, module in enumerate(modules):
        folder = root / "sys/class" / kind / f"{prefix}{number}" / "device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x1da3\n", encoding="ascii")
        (folder / "device_type").write_text(f"{device_type}\n", encoding="ascii")
        if module is not None:
            (folder / "module_id").write_text(f"{module}\n", encoding="ascii")
        (root / devices / f"{prefix}{number}").touch()
    return root


def autoload() -> None:
    """What torch calls when it is imported: Intel's library loads itself where it is told to."""
    if os.environ.get("PT_HPU_AUTOLOAD") == "1":
        importlib.import_module("habana_frameworks.torch")


def write(folder: Path, root: Path) -> Path:
    """Make ``folder`` one that, on ``PYTHONPATH``, makes every process :func:`pretend`, and torch :func:`autoload`."""
    (folder / "simulated_gaudi.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    code = f"import simulated_gaudi\nsimulated_gaudi.pretend({str(root)!r})\n" + SESSION
    (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
    metadata = folder / "simulated_gaudi-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: simulated-gaudi\nVersion: 1.0\n", encoding="utf-8")
    points = "[torch.backends]\ngaudi = simulated_gaudi:autoload\n"
    (metadata / "entry_points.txt").write_text(points, encoding="utf-8")
    return folder
