"""JSONLogger: each set of metrics as one line of JSON."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TextIO

from .folders import FolderLogger
from .values import scalars

__all__ = ["JSONLogger", "append_to", "cut_file"]


class JSONLogger(FolderLogger):
    """Appends each set of metrics to ``metrics.jsonl`` as one line: ``{"step": 3, "loss": 0.5}``.

    A line is handed to the operating system at once, so it outlives a crash of the process. NaN and infinities are
    written as Python's ``json`` reads them. :attr:`experiment` is the open file.
    """

    name: ClassVar[str] = "json"

    def open(self) -> TextIO:
        """Open the file; an earlier run's lines in it are kept."""
        return append_to(self.path, self)

    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Append a line."""
        line = {"step": step, **scalars(type(self).__name__, values), **options}
        self.experiment.write(json.dumps(line) + "\n")
        self.experiment.flush()

    def write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int | None) -> None:
        """Append a line with the table under its name."""
        line = {"step": step, name: {"columns": columns, "data": rows}}
        self.experiment.write(json.dumps(line, default=str) + "\n")
        self.experiment.flush()

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.log_dir) / "metrics.jsonl"

    def written(self) -> dict[str, Any]:
        """The file's size."""
        return {"size": self.path.stat().st_size if self.path.exists() else 0}

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Drop the lines after those that were there."""
        cut_file(self.path, state["size"])

    def close(self, status: str) -> None:
        """Close the file."""
        self.experiment.close()


def cut_file(path: Path, size: int) -> None:
    """Drop what follows the first ``size`` bytes of ``path``, if there is such a file."""
    if path.exists() and path.stat().st_size > size >= 0:
        os.truncate(path, size)


def append_to(path: Path, owner: object) -> TextIO:
    """Open ``path`` for appending whole lines, until ``owner`` is gone; what a crash left of a line ends there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a", encoding="utf-8", newline="")  # noqa: SIM115
    weakref.finalize(owner, file.close)
    if file.tell():
        with open(path, "rb") as existing:
            existing.seek(-1, 2)
            if existing.read() != b"\n":
                file.write("\n")
    return file
