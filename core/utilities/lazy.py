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
            remedy = _remedy(name, package) if name[:1].isupper() else ""
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


def _remedy(name: str, package: str) -> str:
    """What to write for a class that a package lacks: as the table of Lightning's names says, or the nearest one."""
    import difflib
    import tomllib
    from pathlib import Path

    table = Path(__file__).parent.parent / "migrate" / "lightning.toml"
    sections = tomllib.loads(table.read_text("utf-8"))
    row: dict[str, str] = next((part["rows"][name] for part in sections.values() if name in part["rows"]), {})
    if "instead" in row:
        return str(row["instead"])
    module, _, here = row.get("here", "").rpartition(".")
    if module:
        return f"Write: from {module} import {here}"
    near = difflib.get_close_matches(name, sys.modules[package].__all__, 1)
    return f"Did you mean {near[0]!r}?" if near else ""
