"""Which distributions provide a name that is not installed here; only error messages need it.

The table is ``known_names.toml``, next to this file. No code of torch-hal depends on its content.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

__all__ = ["known_names", "providers"]


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
