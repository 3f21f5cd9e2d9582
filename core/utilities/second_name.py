"""The name ``core`` of this package, whose real name is ``torch_hal``: the same modules, never a second copy.

Projects have a folder ``core`` of their own, so nothing in this package depends on that name. Where no other ``core``
comes first in the search path, ``from core import Trainer`` is ``from torch_hal import Trainer``.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False  # importing typing would take a quarter of a listing's time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType
    from typing import Any

__all__ = ["share"]

_REAL = __name__.partition(".")[0]


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
    sys.modules[name] = real
    # First, since the path of the package would give a second copy of each module.
    sys.meta_path.insert(0, _SecondName(name))


class _SecondName:
    """Finds and loads ``core.x.y`` as the module ``torch_hal.x.y``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own_specs: dict[str, ModuleSpec | None] = {}

    def _real(self, name: str) -> str:
        return f"{_REAL}.{name.partition('.')[2]}"

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of this package, if it has a module of that name."""
        package, _, rest = name.partition(".")
        found = _find(self._real(name)) if package == self._name and rest else None
        if found is None:
            return None
        spec = ModuleSpec(name, self, origin=found.origin)  # type: ignore[arg-type]
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module under its real name, imported if need be."""
        module = importlib.import_module(self._real(spec.name))
        self._own_specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to execute; importlib has replaced the module's spec by this one, which is undone here."""
        assert module.__spec__ is not None
        module.__spec__ = self._own_specs.pop(module.__spec__.name)

    def get_code(self, name: str) -> CodeType | None:
        """The module's code, for ``python -m core.x``."""
        spec = _find(self._real(name))
        loader: Any = None if spec is None else spec.loader
        found: CodeType | None = None if loader is None else loader.get_code(self._real(name))
        return found


def _find(name: str) -> ModuleSpec | None:
    """Find like importlib.util.find_spec, whose own import takes as long as a listing."""
    package = importlib.import_module(name.rpartition(".")[0])
    return PathFinder.find_spec(name, package.__path__) if hasattr(package, "__path__") else None
