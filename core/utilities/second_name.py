"""The name ``core`` of this package, whose real name is ``torch_hal``: the same modules, never a second copy.

Projects have a folder ``core`` of their own, so nothing in this package depends on that name. Where no other ``core``
comes first in the search path, ``from core import Trainer`` is ``from torch_hal import Trainer``.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)

TYPE_CHECKING = False  # importing typing would take a quarter of a listing's time
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any

_REAL = __name__.partition(".")[0]
_LOADERS = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)
"""Python's own, in its order."""


def share(name: str, file: str) -> None:
    """Let ``name`` and ``name.x`` be imported as this package and its module ``x``.

    Args:
        name: The second name, whose package is being imported.
        file: The ``__init__.py`` that is being executed for it.

    Raises:
        ImportError: It belongs to another installation than the package with the real name.
    """
    real = sys.modules[_REAL]
    ours, places = os.path.dirname(os.path.dirname(os.path.abspath(file))), list(real.__path__)
    if not any(os.path.samefile(os.path.dirname(place), ours) for place in places):
        raise ImportError(f"{name} is installed in {ours}, and {_REAL} in {places}. Reinstall torch-hal.", name=name)
    sys.modules[name], _Folder.second_name = real, name
    within = tuple(place + os.sep for place in places)

    def folder(path: str) -> _Folder:
        if path not in places and not path.startswith(within):
            raise ImportError
        return _Folder(path, *_LOADERS)

    # Python would find a second copy of each module in these folders. A finder for each of them, and none for all
    # imports: torch's are many.
    sys.path_hooks.insert(0, folder)
    for path in [path for path in sys.path_importer_cache if path in places or path.startswith(within)]:
        del sys.path_importer_cache[path]


class _Folder(FileFinder):
    """Finds the modules in a folder of this package: ``core.x.y`` is the module ``torch_hal.x.y``."""

    second_name = ""

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a module of this package."""
        package, _, rest = fullname.partition(".")
        if package != self.second_name:
            return super().find_spec(fullname, target)
        found = super().find_spec(f"{_REAL}.{rest}", target)
        if found is None:
            return None
        spec = ModuleSpec(fullname, _SameModule(found), origin=found.origin)  # type: ignore[arg-type]
        spec.submodule_search_locations = found.submodule_search_locations
        return spec


class _SameModule:
    """Loads a module under its second name: as the one with the real name, which is imported if need be."""

    def __init__(self, found: ModuleSpec) -> None:
        self._found = found
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module under its real name."""
        module = importlib.import_module(self._found.name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute; importlib has replaced the module's spec by this one, which is undone here."""
        module.__spec__ = self._own_spec

    def get_code(self, name: str) -> CodeType | None:
        """The module's code, for ``python -m core.x``."""
        loader: Any = self._found.loader
        code: CodeType | None = loader.get_code(self._found.name)
        return code
