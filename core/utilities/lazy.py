"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # true for type checkers; importing typing would take a quarter of a listing's time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["lazy_names", "written"]


def written(name: str) -> str:
    """The name of a module as scripts write it: ``core.strategies`` where ``core`` is this package."""
    own = sys.modules.get("core") is sys.modules["torch_hal"] and name.partition(".")[0] == "torch_hal"
    return f"core{name.removeprefix('torch_hal')}" if own else name


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package that imports its names when they are first used.

    Args:
        package: The package's ``__name__``.
        homes: For each name, the module that defines it.
    """

    def find(name: str) -> Any:
        if name not in homes:
            shown = written(package)
            remedy = "" if name.startswith("__") or _is_module(name, package) else _remedy(name, package)
            asking = (sys._getframe(1), sys._getframe(1).f_back)  # __getattr__ of the package may be in between
            if remedy and any(frame and frame.f_code.co_name == "_handle_fromlist" for frame in asking):
                raise ImportError(f"{shown} has no {name!r}. {remedy}")  # an AttributeError would be replaced
            raise AttributeError(f"module {shown!r} has no attribute {name!r}. {remedy}".rstrip(". ") + ".")
        import importlib

        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, names


def _is_module(name: str, package: str) -> bool:
    """Whether a package has a module ``name``: ``from core import plan`` asks for an attribute, before it imports."""
    import os

    places = [os.path.join(folder, name) for folder in sys.modules[package].__path__]
    return any(os.path.exists(place) or os.path.exists(f"{place}.py") for place in places)


def _remedy(name: str, package: str) -> str:
    """The remedy for a name that a package lacks: from ``remedies.toml``, its home module, or the nearest name."""
    import difflib
    import importlib

    from ..hints.remedies import import_line, remedies
    from ..hints.remedies import package as providing

    if said := remedies("imports").get(name):
        return said
    if not name[:1].isupper() and name not in remedies("elsewhere"):
        return ""  # Python itself names the nearest
    homes = ("torch_hal", *(f"torch_hal.{one}" for one in _HOMES))
    home = next((one for one in homes if one != package and name in importlib.import_module(one).__all__), "")
    path = remedies("elsewhere").get(name) or (f"{home}.{name}" if home else "")
    if path:
        folder = path.partition(".")[0]
        if folder.startswith("torch_hal_"):
            return f"Run: pip install {providing(folder.replace('_', '-'))}. Write: {import_line(path, name)}"
        own = f"torch_hal.{path.removeprefix('core.')}" if path.startswith("core.") else path
        return f"Write: {import_line(written(own), name)}"
    near = difflib.get_close_matches(name, sys.modules[package].__all__, 1)
    return f"Did you mean {near[0]!r}?" if near else ""


_HOMES = ("callbacks", "loggers", "strategies", "accelerators")
"""Packages of core whose names are known without importing torch."""
