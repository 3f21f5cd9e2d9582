"""CSVLogger: each set of metrics as one row of a table."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TextIO

from core.loggers.folders import FolderLogger
from core.loggers.json_lines import append_to
from core.loggers.values import scalars

__all__ = ["CSVLogger"]


class CSVLogger(FolderLogger):
    """Appends each set of metrics to ``metrics.csv`` as one row, after its step.

    A new metric adds a column, which is empty in earlier rows. A row is handed to the operating
    system at once, so it outlives a crash of the process. :attr:`experiment` is the open file.
    """

    name: ClassVar[str] = "csv"

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.log_dir) / "metrics.csv"

    def open(self) -> TextIO:
        """Open the file; an earlier run's rows in it are kept."""
        file = append_to(self.path, self)
        with open(self.path, encoding="utf-8", newline="") as existing:
            self._columns = next(csv.reader(existing), [])
        return file

    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Append a row."""
        row = {"step": step, **scalars(type(self).__name__, values), **options}
        file = self.experiment
        if not row.keys() <= {*self._columns}:
            self._add_columns([name for name in row if name not in self._columns])
            file = self.experiment
        csv.DictWriter(file, self._columns, lineterminator="\n").writerow(row)
        file.flush()

    def close(self, status: str) -> None:
        """Close the file."""
        self.experiment.close()

    def _add_columns(self, names: list[str]) -> None:
        """Write the file again with more columns; until it is complete, the file is as it was."""
        columns = [*self._columns, *names]
        unfinished = self.path.with_name("metrics.csv.tmp")
        with (
            open(self.path, encoding="utf-8", newline="") as existing,
            open(unfinished, "w", encoding="utf-8", newline="") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            rows = csv.reader(existing)
            next(rows, None)
            writer.writerow(columns)
            for row in rows:
                writer.writerow([*row, *[""] * (len(columns) - len(row))])
        self._experiment.close()
        unfinished.replace(self.path)
        self._columns, self._experiment = columns, append_to(self.path, self)
