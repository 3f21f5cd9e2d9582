"""A logger that writes nothing, for runs that only try something out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import Logger, NoExperiment

__all__ = ["NoLogger"]


class NoLogger(Logger):
    """Takes everything and writes nothing; the methods of its ``experiment`` do nothing either."""

    def open(self) -> NoExperiment:
        """See :meth:`Logger.open`."""
        return NoExperiment()

    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Do nothing."""

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        """Do nothing."""

    def write_images(self, images: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Do nothing."""

    def write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int | None) -> None:
        """Do nothing."""

    def write_graph(self, model: Any, inputs: Any) -> None:
        """Do nothing."""
