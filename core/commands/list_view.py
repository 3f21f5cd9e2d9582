"""The listing on a terminal: the tables of :mod:`core.list` with colours."""

from __future__ import annotations

from .terminal import Style, is_terminal, table, width_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TextIO

    from ..discovery.scan import Row

__all__ = ["drawing"]

_COLOURS = {
    "available": ("green",),
    "installed": (),
    "unavailable": ("yellow",),
    "denied": ("yellow",),
    "failed": ("red", "bold"),
    "incompatible": ("red",),
    "conflict": ("red",),
}


def drawing(
    stream: TextIO,
    environ: Mapping[str, str],
    headed: Callable[[str, list[Row]], tuple[list[str], list[list[str]]]],
    below: Callable[[Row, bool], Iterable[str]],
) -> Callable[[str, list[Row], bool], str] | None:
    """A function that draws the table of a kind; ``None`` where ``stream`` cannot show it.

    Args:
        stream: Where the table goes.
        environ: The environment variables.
        headed: The titles and the cells of a table.
        below: The lines below a row.
    """
    if not is_terminal(stream, environ):
        return None
    style, width = Style(environ), width_of(stream, environ)

    def draw(kind: str, rows: list[Row], verbose: bool) -> str:
        titles, cells = headed(kind, rows)
        drawn = []
        for row, (name, *others, state) in zip(rows, cells, strict=True):
            coloured = style(f"● {state}", *_COLOURS.get(row.state, ()))
            lines = [style(line, "dim") for line in below(row, verbose)]
            drawn.append(([style(name, "bold"), *(style(text, "dim") for text in others), coloured], lines))
        return table(titles, drawn, style, width)

    return draw
