"""The tables of a library's names: where each is here, what differs, and what to use where it is missing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch_hal.hints.remedies import remedies

__all__ = ["DIFFERS", "HERE", "MISSING", "Row", "Section", "read_tables"]

HERE, DIFFERS, MISSING = "works", "differs", "missing"


class Row(NamedTuple):
    """One name of the library."""

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
    """How the library's scripts use them, such as ``Trainer(...)``."""
    rows: Mapping[str, Row]
    instead: Mapping[str, str]
    """What torch-hal says of names that are missing here: of those in ``rows``, of other versions, and of habits."""
    intro: str = ""
    """The text above its table on the page."""

    @property
    def unread(self) -> set[str]:
        """Missing names of which torch-hal says nothing: a class of the script may have them for itself."""
        return {name for name, row in self.rows.items() if row.state == MISSING and name not in self.instead}

    def find(self, name: str, unknown: str) -> Row:
        """The row of ``name``; ``unknown`` is the note of one that is in no table."""
        return self.rows.get(name) or Row(name, MISSING, "", self.instead.get(name, unknown))


def read_tables(file: Path) -> dict[str, Section]:
    """The sections of a library's table, by name."""
    return {name: _section(name, content) for name, content in tomllib.loads(file.read_text("utf-8")).items()}


def _section(name: str, content: Mapping[str, Any]) -> Section:
    place, *owners = content["place"].split(".", 1)
    instead = remedies(place, ("Callback", "Module") if owners == ["Module"] else owners or None)
    rows = {key: _row(key, row, instead, content.get("home", "")) for key, row in content["rows"].items()}
    return Section(name, content["title"], content["peer"], rows, instead, content.get("intro", ""))


def _row(name: str, row: Mapping[str, str], instead: Mapping[str, str], home: str) -> Row:
    here = row.get("here", name)
    if home and "here" not in row:
        here = remedies("elsewhere").get(name, f"{home}.{name}")
    missing = row.get("instead") or ("" if "here" in row else instead.get(name, ""))
    state = MISSING if missing else DIFFERS if row.get("differs") else HERE
    note = missing or row.get("differs") or row.get("note", "")
    return Row(name, state, here, note, row.get("example", ""), row.get("shown", ""))
