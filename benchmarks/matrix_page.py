"""The matrix as a table: strategies by precisions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from importlib import metadata
from pathlib import Path

from matrix_cells import FRONT_ENDS, PRECISIONS, RANKS, Cell, Outcome
from pages import write_between

__all__ = ["summary", "table", "write_page"]

LEGEND = """\
*yes*: trains with both front ends, on one process and on two. *no*: refused, for the reason below. Names with
`_find_unused_parameters_true` or `_false` have the same rows as the names without.
"""


def write_page(page: Path, found: Mapping[Cell, Outcome]) -> None:
    """Replace the text between the markers in ``page``."""
    write_between(page, "matrix", f"{LEGEND}\n{table(found)}\n{_made()}")


def table(found: Mapping[Cell, Outcome]) -> str:
    """The table in Markdown, with a note for each reason of a refusal."""
    notes: dict[str, int] = {}
    precisions = [precision for precision in PRECISIONS if any(cell.precision == precision for cell in found)]
    lines = [f"| strategy | {' | '.join(precisions)} |", "|---" * (len(precisions) + 1) + "|"]
    for strategy in dict.fromkeys(cell.strategy for cell in sorted(found)):
        entries = [_entry(strategy, precision, found, notes) for precision in precisions]
        lines.append(f"| `{strategy}` | {' | '.join(entries)} |")
    notes_list = [f"{number}. {reason}" for reason, number in notes.items()]
    return "\n".join([*lines, "", *notes_list]) + "\n"


def summary(found: Mapping[Cell, Outcome]) -> str:
    """The table for a terminal."""
    return table(found).replace("<sup>", "^").replace("</sup>", "")


def _made() -> str:
    """The date and the versions."""
    versions = []
    for library in ("torch", "deepspeed", "horovod"):
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{library} {metadata.version(library)}")
    return f"Made by `benchmarks/matrix.py` on {date.today()}, on the CPU, with {', '.join(versions)}."


def _entry(strategy: str, precision: str, found: Mapping[Cell, Outcome], notes: dict[str, int]) -> str:
    here = {
        (cell.front_end, cell.ranks): outcome
        for cell, outcome in found.items()
        if (cell.strategy, cell.precision) == (strategy, precision)
    }
    reasons = dict.fromkeys(
        _reason(strategy, precision, outcome) for outcome in here.values() if outcome.kind == "refused"
    )
    marks = ", ".join(str(notes.setdefault(reason, len(notes) + 1)) for reason in reasons)
    mark = f"<sup>{marks}</sup>" if marks else ""
    if any(outcome.kind == "failed" for outcome in here.values()):
        return "**failed**" + mark
    worked = {place for place, outcome in here.items() if outcome.kind == "worked"}
    return (_where(worked, set(here)) if worked else "no") + mark


def _where(worked: set[tuple[str, int]], asked: set[tuple[str, int]]) -> str:
    """Which of the requested cells worked, as a short text."""
    if worked == asked:
        return "yes"
    for ranks in RANKS:
        if worked == {place for place in asked if place[1] == ranks}:
            return f"{ranks} process" + ("es" if ranks > 1 else "")
    for front_end in FRONT_ENDS:
        if worked == {place for place in asked if place[0] == front_end}:
            return front_end
    return ", ".join(f"{front_end} on {ranks}" for front_end, ranks in sorted(worked))


def _reason(strategy: str, precision: str, outcome: Outcome) -> str:
    """The refusal, without the names of strategy and precision."""
    first = outcome.text.strip().splitlines()[0]
    return first.replace(repr(strategy), "…").replace(repr(precision), "…").replace("|", "\\|")
