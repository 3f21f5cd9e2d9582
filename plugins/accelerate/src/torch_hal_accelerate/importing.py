"""Doing something to a module when the script imports it, so that nothing is imported that it does not use."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["when_imported"]


def when_imported(name: str, function: Callable[[ModuleType], object]) -> Callable[[], object]:
    """Call ``function(module)`` once the module called ``name`` has been imported; at once if it is.

    Returns:
        A function that stops waiting.
    """
    if name in sys.modules:
        function(sys.modules[name])
        return lambda: None
    finder = _Finder(name, function)
    sys.meta_path.insert(0, finder)
    return finder.stop


class _Finder(MetaPathFinder):
    def __init__(self, name: str, function: Callable[[ModuleType], object]) -> None:
        self._name, self._function = name, function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        self.stop()
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._function)
        return spec

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(Loader):
    """The module's own loader, with ``function`` called after it."""

    def __init__(self, loader: Any, function: Callable[[ModuleType], object]) -> None:
        self._loader, self._function = loader, function

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._function(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
