"""Names of a package that are imported when somebody first asks for one of them (PEP 562)."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # type checkers take it for true; importing typing costs a listing a quarter of its time
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """What a package assigns to its ``__getattr__`` and ``__dir__``, so that importing it imports none of ``homes``.

    Args:
        package: The package's ``__name__``.
        homes: Of each name the module that has it.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, names
