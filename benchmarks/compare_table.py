"""The table of `compare.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from compare_figures import LAST, Figures
from compare_roster import Entry

__all__ = ["table"]


LEGEND = f"""\
Final losses are means over the last {LAST} steps. Every other figure is the larger one of both tasks: relative
differences of a step's loss from DDP's; differences of a final parameter from DDP's, and between processes if each
has all parameters, relative to the largest value in its tensor; and both of these between an uninterrupted run of the
Trainer and one that new processes resumed at the end of an epoch. *equal* means bit for bit. `async` is not
deterministic. DeepSpeed keeps tensors of less than a megabyte in memory, so all of these models when the strategy
offloads to a drive; the tests of torch-hal-deepspeed train and resume a larger one there, bit for bit as on the host.
Under `qadam` the optimizer is Adam, as in the second row.
"""


def table(entries: Iterable[Entry], found: Mapping[str, Figures]) -> str:
    """A line of Markdown for each entry, and what the columns are."""
    entries = list(entries)
    tasks = list(found[entries[0].name].tasks)
    head = ["strategy", *(f"{name}: final loss" for name in tasks), "losses to DDP's", "parameters to DDP's"]
    head += ["Trainer's losses to DDP's", "between processes", "resumed to uninterrupted"]
    lines = [head, ["---", *("---:" for _ in head[1:])]]
    for entry in entries:
        figures = found[entry.name]
        if figures.refusal is not None:
            lines.append([entry.name, f"refused by name here: needs {entry.needs}", *("" for _ in head[2:])])
            continue
        if figures.failure is not None:
            lines.append([entry.name, "failed", *("" for _ in head[2:])])
            continue
        by_task = list(figures.tasks.values())
        line = [f"`{entry.name}`" if entry.strategy else entry.name, *(f"{task.final:.4f}" for task in by_task)]
        compared = ("losses", "parameters", "fitted", "ranks", "resumed")
        line += [_greatest([getattr(task, what) for task in by_task]) for what in compared]
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{LEGEND}"


def _greatest(by_task: list[float | None]) -> str:
    differences = [difference for difference in by_task if difference is not None]
    if not differences:
        return ""
    return f"{max(differences):.0e}" if max(differences) else "equal"
