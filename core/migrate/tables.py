"""The tables of a peer's names: where each is here, what differs, and what to use where it is missing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["DIFFERS", "HERE", "MISSING", "Row", "Section", "full_path", "read_tables"]

HERE, DIFFERS, MISSING = "works", "differs", "missing"

HOMES = {
    "callbacks": "core.callbacks",
    "loggers": "core.loggers",
    "profilers": "core.profilers",
    "imports": "core",
    "functions": "core",
}
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
    example: str = ""
    """Code that runs here."""
    shown: str = ""
    """The name on the page, where it is another one."""


class Section(NamedTuple):
    """The names of one kind."""

    name: str
    title: str
    peer: str
    """How the peer's scripts use them, such as ``Trainer(...)``."""
    rows: Mapping[str, Row]
    intro: str = ""
    """The text above its table on the page."""


def read_tables(file: Path) -> dict[str, Section]:
    """The sections of a peer's table, by name."""
    text = file.read_text("utf-8")
    return {name: _section(name, content) for name, content in tomllib.loads(text).items()}


def _section(name: str, content: Mapping[str, Any]) -> Section:
    missing = frozenset(content["missing"])
    rows = {key: _row(name, key, row, key in missing) for key, row in content["rows"].items()}
    return Section(name, content["title"], content["peer"], rows, content.get("intro", ""))


def full_path(section: str, here: str) -> str:
    """The path of a name here; in the sections of :data:`HOMES`, names without one are in that module."""
    return f"{HOMES[section]}.{here}" if section in HOMES and not here.startswith("core.") else here


def _row(section: str, name: str, row: Mapping[str, str], is_missing: bool) -> Row:
    state = MISSING if is_missing else DIFFERS if row.get("differs") else HERE
    note = row.get("instead", "") if is_missing else row.get("differs") or row.get("note", "")
    here = full_path(section, row.get("here", name))
    return Row(name, state, here, note, row.get("example", ""), row.get("shown", ""))
