"""The tables of a peer's names: where each is here, what differs, and what to use where it is missing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["DIFFERS", "HERE", "MISSING", "Row", "Section", "read_tables"]

HERE, DIFFERS, MISSING = "works", "differs", "missing"

HOMES = {"callbacks": "core.callbacks", "loggers": "core.loggers", "profilers": "core.profilers"}
"""The modules of classes, by section."""


class Row(NamedTuple):
    """One name of the peer."""

    name: str
    state: str
    """:data:`HERE`, :data:`DIFFERS` or :data:`MISSING`."""
    here: str
    """The name here; for what is imported, the whole path."""
    note: str
    """What differs, or what to use instead; may be empty."""


class Section(NamedTuple):
    """The names of one kind."""

    name: str
    title: str
    peer: str
    """How the peer's scripts use them, such as ``Trainer(...)``."""
    rows: Mapping[str, Row]


def read_tables(peer: str = "lightning") -> dict[str, Section]:
    """The sections of a peer's table, by name."""
    text = Path(__file__).with_name(f"{peer}.toml").read_text("utf-8")
    return {name: _section(name, content) for name, content in tomllib.loads(text).items()}


def _section(name: str, content: Mapping[str, Any]) -> Section:
    missing = frozenset(content["missing"])
    rows = {key: _row(key, row, key in missing, HOMES.get(name, "")) for key, row in content["rows"].items()}
    return Section(name, content["title"], content["peer"], rows)


def _row(name: str, row: Mapping[str, str], is_missing: bool, home: str) -> Row:
    here = row.get("here", name)
    if home:
        here = f"{home}.{here}"
    if is_missing:
        return Row(name, MISSING, here, row.get("instead", ""))
    return Row(name, DIFFERS if row.get("differs") else HERE, here, row.get("differs", ""))
