"""The summary of a module as a table by rich."""

from __future__ import annotations

from typing import Any

from .layer_table import Summary
from .model_summary import ModelSummary
from .rich_console import check_rich, make_console

__all__ = ["RichModelSummary"]


class RichModelSummary(ModelSummary):
    """A :class:`ModelSummary` that rich draws on the standard error stream.

    Args:
        max_depth: How many levels of layers to list; 0 shows nothing, -1 lists all.
        **console_kwargs: Arguments of ``rich.console.Console``.

    Raises:
        ConfigurationError: rich is not installed.
    """

    def __init__(self, max_depth: int = 1, **console_kwargs: Any) -> None:
        super().__init__(max_depth)
        check_rich(self, "ModelSummary")
        self._console_options = console_kwargs

    def write(self, summary: Summary) -> None:
        """Draw the table, and the totals below it."""
        from rich.table import Table
        from rich.text import Text

        header, rows = summary.table()
        table = Table(header_style="bold magenta")
        for title in header:
            table.add_column(title, justify="right" if title in ("Params", "FLOPs") else "left")
        for row in rows:
            table.add_row(*map(Text, row))
        console = make_console(**self._console_options)
        console.print(table)
        for line in (*summary.totals(), *summary.notes):
            console.print(Text(line))
