"""A second import name for the package ``core`` of torch-hal: the same objects, never a second copy.

``from torch_hal import Trainer`` is ``from core import Trainer``, and ``torch_hal.strategies`` is the module
``core.strategies``. Importing this package imports no torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType
    from typing import Any

    from core import *  # noqa: F403  for type checkers and editors


def _core() -> ModuleType:
    """The package ``core`` that was installed together with this one.

    Raises:
        ImportError: Python finds another ``core`` first.
    """
    ours = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "core")
    try:
        spec = importlib.util.find_spec("core")
    except ValueError:  # something in sys.modules that was not imported from a file
        spec = None
    places = [] if spec is None else list(spec.submodule_search_locations or [spec.origin or "?"])
    if not any(os.path.exists(place) and os.path.samefile(place, ours) for place in places):
        hidden_by = ", ".join(places) or "another module"
        raise ImportError(
            f"torch_hal: the package 'core' of torch-hal ({ours}) is hidden by {hidden_by}, which Python finds first. "
            "Rename yours. If this program does not need it, run from another directory, or use 'python -P', which "
            "leaves the script's directory out of sys.path. The command torch-hal works in any directory.",
            name="core",
        )
    return importlib.import_module("core")


class _Alias:
    """Finds and loads ``torch_hal.x.y`` as the module ``core.x.y``."""

    _own_specs: dict[str, ModuleSpec | None] = {}  # noqa: RUF012  shared: one finder, one loader

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """The spec of a module of this package, if ``core`` has a module of that name."""
        package, _, rest = name.partition(".")
        found = importlib.util.find_spec(f"core.{rest}") if package == __name__ and rest else None
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(name, cls, origin=found.origin, is_package=is_package)  # type: ignore[arg-type]

    @classmethod
    def create_module(cls, spec: ModuleSpec) -> ModuleType:
        """The module of ``core``, imported if need be."""
        module = importlib.import_module(_original(spec.name))
        cls._own_specs[spec.name] = module.__spec__
        return module

    @classmethod
    def exec_module(cls, module: ModuleType) -> None:
        """Nothing to execute; importlib has replaced the module's spec by the alias's, which is undone here."""
        assert module.__spec__ is not None
        module.__spec__ = cls._own_specs.pop(module.__spec__.name)

    @classmethod
    def get_code(cls, name: str) -> CodeType | None:
        """The module's code, for ``python -m torch_hal.x``."""
        spec = importlib.util.find_spec(_original(name))
        loader = None if spec is None else spec.loader
        return loader.get_code(_original(name)) if isinstance(loader, InspectLoader) else None


def _original(name: str) -> str:
    return f"core.{name.partition('.')[2]}"


core = _core()
__all__ = core.__all__
# First, since the path of core.x, which torch_hal.x shares, would give a second copy of core.x.y.
sys.meta_path.insert(0, _Alias)


def __getattr__(name: str) -> Any:
    try:
        return getattr(core, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return dir(core)
