"""Writes the tables of the pages on migrating.

Run ``python docs/write_migration.py`` after a change to a table of plugins/migrate, or to what error messages say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from torch_hal_migrate.report import ACCELERATE, LIGHTNING, Library
from torch_hal_migrate.tables import MISSING, Row, Section

from core.hints.remedies import import_line

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- tables:begin -->", "<!-- tables:end -->"


def main(root: Path = ROOT) -> None:
    """Write the tables of all libraries into their pages."""
    for library in (LIGHTNING, ACCELERATE):
        place = root / library.page
        page = place.read_text("utf-8")
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        place.write_text(f"{before}{BEGIN}\n{tables(library, library.read().values())}{END}{after}", encoding="utf-8")


def tables(library: Library, sections: Iterable[Section]) -> str:
    """The sections as Markdown."""
    parts = []
    for section in sections:
        intro = f"{section.intro}\n\n" if section.intro else ""
        parts.append(
            f"\n## {section.title}\n\n{intro}| {library.name} | here | what differs, or what to use instead |\n"
            "|---|---|---|\n"
        )
        for row in section.rows.values():
            parts.append(f"| {row.shown or f'`{row.name}`'} | {here_of(library, row)} | {row.note} |\n")
    # Pages name the packages, not where they were installed from here.
    return re.sub(r"(torch-hal-[a-z]+)@[^ )`]+", r"\1", "".join(parts)) + "\n"


def here_of(library: Library, row: Row) -> str:
    """The middle column: an example, the line that imports it, or the name."""
    if row.state == MISSING:
        return "missing"
    if library is ACCELERATE:
        return f"`{row.example or import_line(row.here, row.name)}`"
    return f"`{row.here}`"


if __name__ == "__main__":
    main()
