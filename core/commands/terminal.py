"""Colours and lines of boxes on a terminal, by escape sequences alone, so that nothing is imported.

Elsewhere, such as in a file or a pipe, commands write plain text, which other programs may read.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

__all__ = ["Style", "is_terminal", "table", "visible_length", "width_of"]

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_ESCAPE = re.compile("\x1b\\[[0-9;]*m")
_BOXES = "─│├└●"


def is_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether ``stream`` is a terminal that can draw lines of boxes."""
    if not stream.isatty() or environ.get("TERM") == "dumb":
        return False
    try:
        _BOXES.encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


def width_of(stream: TextIO, environ: Mapping[str, str]) -> int:
    """The columns of the terminal: ``COLUMNS``, or what it says itself; 80 if it does not."""
    given = environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):  # a stream without a descriptor
        return 80


class Style:
    """Colours text, unless the environment variable ``NO_COLOR`` is set to anything."""

    __slots__ = ("_has_colours",)

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._has_colours = not environ.get("NO_COLOR")

    def __call__(self, text: str, *names: str) -> str:
        """``text`` in these styles: ``bold``, ``dim``, ``red``, ``green``, ``yellow``, ``cyan``."""
        if not (self._has_colours and names and text):
            return text
        return f"\x1b[{';'.join(_CODES[name] for name in names)}m{text}\x1b[0m"


def visible_length(text: str) -> int:
    """The columns that ``text`` takes, without its colours."""
    return len(_ESCAPE.sub("", text))


def table(titles: Sequence[str], rows: Sequence[tuple[Sequence[str], Sequence[str]]], style: Style, width: int) -> str:
    """Rows under titles and a line; each row is its cells, and lines to show below it.

    If a row does not fit in ``width`` columns, its first cell is on a separate line.
    """
    cells = [titles, *(row for row, _ in rows)]
    widths = [max(visible_length(row[column]) for row in cells) for column in range(len(titles))]

    def line(row: Sequence[str]) -> str:
        padded = (text + " " * (width - visible_length(text)) for text, width in zip(row, widths, strict=True))
        return "  ".join(padded).rstrip()

    needed = sum(widths) + 2 * len(widths) - 2
    is_narrow = needed > width
    shown = "  ".join(titles) if is_narrow else line(titles)
    lines = [style(shown, "bold"), style("─" * min(needed, width), "dim")]
    for row, below in rows:
        lines += [row[0], f"    {'  '.join(row[1:])}"] if is_narrow else [line(row)]
        lines += below
    return "\n".join(lines)
