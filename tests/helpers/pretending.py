"""Making processes take this machine for another: attributes of modules are replaced as soon as they are imported.

The standard library only: ``sitecustomize`` imports this.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["pretend", "write_machine"]

_SESSION = """
try:
    import starting
except ModuleNotFoundError:
    pass
"""
"""What a session of tests has in its own ``sitecustomize``, if it has one."""


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, modules: Mapping[str, Mapping[str, Any]]) -> None:
        self.modules = modules

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self.modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        genuine, attributes = spec.loader.exec_module, self.modules[name]

        def exec_module(module: ModuleType) -> None:
            genuine(module)
            vars(module).update(attributes)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def pretend(modules: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace attributes of modules in this process: module -> attribute -> value."""
    for name in modules.keys() & sys.modules.keys():
        vars(sys.modules[name]).update(modules[name])
    sys.meta_path.insert(0, _Finder(modules))


def write_machine(folder: Path, name: str, code: str, autoload: str) -> Path:
    """Write a folder that makes every process pretend, and put it on ``PYTHONPATH`` of those that this process starts.

    Args:
        folder: An empty folder.
        name: Of the machine: an identifier.
        code: What each process runs when it starts; it can call :func:`pretend`.
        autoload: What torch runs when it is imported, as for a vendor's backend.
    """
    (folder / "pretending.py").write_text(Path(__file__).read_text("utf-8"), "utf-8")
    (folder / "sitecustomize.py").write_text(f"from pretending import pretend\n{code}{_SESSION}", "utf-8")
    body = "".join(f"    {line}\n" for line in autoload.splitlines())
    (folder / f"{name}.py").write_text(f"def autoload():\n{body}", "utf-8")
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (metadata / "entry_points.txt").write_text(f"[torch.backends]\n{name} = {name}:autoload\n", "utf-8")
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    return folder
