"""A picture of a run: the curve of each metric, drawn with matplotlib where it is installed."""

from __future__ import annotations

import csv
import importlib.util
import math
from pathlib import Path

__all__ = ["draw_metrics"]

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
