"""Loggers that write text: CSVLogger, with a picture of the curves where matplotlib is installed, and JSONLogger."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TextIO

from ..hints.argument_checks import check_count
from .folders import FolderLogger
from .values import plain, scalars, write_json


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


COLUMNS = 3
"""Curves next to each other."""


def draw_metrics(path: Path) -> None:
    """Draw the curves in the table ``path`` into a file of the same name with the suffix ``.png``.

    Nothing is drawn where matplotlib is not installed, or there is no metric with two values.
    """
    if importlib.util.find_spec("matplotlib") is None or not path.exists():
        return
    curves = _curves(path)
    if not curves:
        return
    from matplotlib.figure import Figure  # not pyplot, which chooses a window system and keeps state

    lines = math.ceil(len(curves) / COLUMNS)
    figure = Figure(figsize=(4 * min(COLUMNS, len(curves)), 2.6 * lines), layout="constrained")
    for position, (name, points) in enumerate(curves.items(), 1):
        axes = figure.add_subplot(lines, min(COLUMNS, len(curves)), position)
        axes.plot([step for step, _ in points], [value for _, value in points])
        axes.set_title(name)
        axes.set_xlabel("step")
    figure.savefig(path.with_suffix(".png"))


def _curves(path: Path) -> dict[str, list[tuple[float, float]]]:
    """By name, the steps and values of each metric that has at least two."""
    curves: dict[str, list[tuple[float, float]]] = {}
    with open(path, encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            for name, text in row.items():
                if name in ("step", "epoch") or not text:
                    continue
                try:
                    value = float(text)
                except ValueError:  # text, which has no curve
                    continue
                curves.setdefault(name, []).append((float(row.get("step") or number), value))
    return {name: points for name, points in curves.items() if len(points) > 1}


class CSVTable:
    """The open ``metrics.csv`` of a :class:`CSVLogger`.

    Args:
        path: The file, which is made if there is none.
        flush_every: How many rows are handed to the operating system at once.
    """

    def __init__(self, path: Path, flush_every: int) -> None:
        self.metrics_file_path = os.fspath(path)
        """The file."""
        self.log_dir = os.fspath(path.parent)
        """The folder of the file."""
        self._path, self._flush_every, self._waiting = path, flush_every, 0
        self._file = append_to(path, self)
        with open(path, encoding="utf-8", newline="") as existing:
            self._columns: list[str] = next(csv.reader(existing), [])
        self._writer = csv.DictWriter(self._file, self._columns, lineterminator="\n")

    def log_metrics(self, metrics_dict: Mapping[str, Any], step: int | None = None) -> None:
        """Append a row, as :meth:`CSVLogger.log_metrics`."""
        self.append({"step": step, **scalars("CSVLogger", plain(metrics_dict))})

    def log_hparams(self, params: Mapping[str, Any]) -> None:
        """Write ``hparams.json``, as :meth:`CSVLogger.log_hyperparams`."""
        write_json(self._path.with_name("hparams.json"), plain(params))

    def save(self) -> None:
        """Write the rows that are waiting."""
        self._file.flush()
        self._waiting = 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def append(self, row: Mapping[str, Any]) -> None:
        """Append ``row``, whose values are numbers or text; a new name adds a column."""
        if not row.keys() <= {*self._columns}:
            self.save()
            self._add_columns([name for name in row if name not in self._columns])
        self._writer.writerow(row)
        self._waiting += 1
        if self._waiting >= self._flush_every:
            self.save()

    def _add_columns(self, names: list[str]) -> None:
        """Write the file again with more columns; until it is complete, the file is as it was."""
        columns = [*self._columns, *names]
        rows = [[*row, *[""] * (len(columns) - len(row))] for row in _read(self._path)[1:]]
        self._file.close()
        _write(self._path, [columns, *rows])
        self._columns, self._file = columns, append_to(self._path, self)
        self._writer = csv.DictWriter(self._file, columns, lineterminator="\n")


class CSVLogger(FolderLogger):
    """Appends each set of metrics to ``metrics.csv`` as one row, after its step.

    A new metric adds a column, which is empty in earlier rows. By default a row is handed to the operating system at
    once, so it outlives a crash of the process. :attr:`experiment` is the open :class:`CSVTable`. At the end of a run
    of a Trainer the curves are drawn into ``metrics.png``, if matplotlib is installed.

    Args:
        save_dir: See :class:`core.loggers.FolderLogger`.
        name: Likewise.
        version: Likewise.
        prefix: Likewise.
        flush_logs_every_n_steps: How many sets of metrics are written at once. Those that are waiting are written with
            each checkpoint and at the end, and are lost if the process is killed.
    """

    name: ClassVar[str] = "csv"

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "core_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 1,
    ) -> None:
        super().__init__(save_dir, name, version, prefix)
        check_count("flush_logs_every_n_steps", flush_logs_every_n_steps, 1)
        self._flush_every = flush_logs_every_n_steps

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.log_dir) / "metrics.csv"

    def open(self) -> CSVTable:
        """Open the file; an earlier run's rows in it are kept."""
        return CSVTable(self.path, self._flush_every)

    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Append a row."""
        row = {**scalars(type(self).__name__, values), **options}
        self.experiment.append({"step": step, **row})

    def flush(self) -> None:
        """Write the rows that are waiting."""
        self.experiment.save()

    def finalize(self, status: str = "success") -> None:
        """Write what is buffered, and draw the picture if a run has ended as it should."""
        super().finalize(status)
        if self.process_index == 0 and status == "success":
            draw_metrics(self.path)

    def close(self, status: str) -> None:
        """Close the file."""
        self.experiment.close()

    def written(self) -> dict[str, Any]:
        """The columns, and the number of rows."""
        rows = _read(self.path)
        return {"columns": rows[0] if rows else [], "rows": max(len(rows) - 1, 0)}

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Drop the rows after those that were there, and the columns that only these had."""
        columns = list(state["columns"])
        rows = [row[: len(columns)] for row in _read(self.path)[1 : state["rows"] + 1]]
        if columns:
            _write(self.path, [columns, *rows])
        else:
            self.path.unlink(missing_ok=True)


def _read(path: Path) -> list[list[str]]:
    """The header and the rows; empty if there is no file."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _write(path: Path, rows: list[list[str]]) -> None:
    unfinished = path.with_name("metrics.csv.tmp")
    with open(unfinished, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    unfinished.replace(path)
