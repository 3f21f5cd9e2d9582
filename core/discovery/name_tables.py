"""Tables of distributions and of names with which error messages say what to install, and what a user means.

The tables are ``known_names.toml`` and ``also_called.toml``, next to this file. No code of torch-hal depends on their
content.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

__all__ = ["also_called", "known_names", "providers"]


@cache
def _table() -> dict[str, dict[str, list[str]]]:
    return tomllib.loads(Path(__file__).with_name("known_names.toml").read_text("utf-8"))


def providers(kind: str, name: str) -> list[str]:
    """The known distributions that provide ``name``, ordered by name.

    Args:
        kind: A key of :data:`core.kinds.KINDS`.
        name: A name or an alias.
    """
    return sorted(distribution for distribution, kinds in _table().items() if name in kinds.get(kind, ()))


def known_names(kind: str) -> list[str]:
    """The names and aliases of that kind that known distributions provide."""
    return sorted({name for kinds in _table().values() for name in kinds.get(kind, ())})


def also_called(kind: str, name: str) -> str:
    """The name that users mean who write ``name``, which no backend has; empty if none is known."""
    table = tomllib.loads(Path(__file__).with_name("also_called.toml").read_text("utf-8"))
    return str(table.get(kind, {}).get(name.lower(), ""))
