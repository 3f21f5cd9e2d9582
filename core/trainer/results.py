"""The results of an evaluation as text, for people."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["LOADER", "results_table", "shown"]

LOADER = re.compile(r"/dataloader_idx_(\d+)$")
"""The end of the name of a value that one of several loaders belongs to."""


def results_table(stage: str, results: Sequence[Mapping[str, float]]) -> str:
    """The values of ``validate`` or ``test``: a line for each name, a column for each loader; empty if there are none.

    Args:
        stage: The heading of the names.
        results: By loader, what was logged.
    """
    columns = [{LOADER.sub("", name): f"{value:.6g}" for name, value in values.items()} for values in results]
    names = list(dict.fromkeys(name for column in columns for name in column))
    if not names:
        return ""
    headings = ["value"] if len(columns) == 1 else [f"loader {number}" for number in range(len(columns))]
    rows = [[stage, *headings], *([name, *(column.get(name, "") for column in columns)] for name in names)]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "-" * (sum(widths) + 2 * len(widths) - 2))
    return "\n".join(lines)


def shown(trainer: Any, stage: str, verbose: bool, results: list[dict[str, float]]) -> list[dict[str, float]]:
    """``results``, which process 0 prints if ``verbose``."""
    text = results_table(stage, results) if verbose else ""
    if text:
        trainer.print(text)
    return results
