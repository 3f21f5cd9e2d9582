"""PyTorchProfiler: operators and kernels, by torch.profiler."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch.profiler import profile, record_function, supported_activities

from ..errors import WrongTypeError, nearest
from ..hints.remedies import remedies
from .base import Profiler

STEPS = ("run_training_batch", "validation_step", "test_step", "predict_step")
"""The actions after which the schedule of torch's profiler goes on."""


class PyTorchProfiler(Profiler):
    """Measures operators and kernels with :class:`torch.profiler.profile`; actions are ranges in its trace.

    Args:
        dirpath: See :class:`Profiler`.
        filename: Likewise.
        export_to_chrome: Whether to write a trace for Chrome or Perfetto, ``<filename>-<stage>-<rank>.json``, if a
            file was asked for.
        row_limit: How many operators the report has; -1 for all.
        sort_by_key: The column that the report is sorted by; ``None`` for the order in which operators ran first.
        group_by_input_shapes: Whether the report has a row for each shape of an operator's inputs.
        table_kwargs: Further arguments of the report's ``table``, such as ``max_name_column_width``.
        **profiler_kwargs: Arguments of :class:`torch.profiler.profile`, such as ``schedule`` and ``record_shapes``.

    Raises:
        WrongTypeError: ``torch.profiler.profile`` does not have one of the arguments.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        export_to_chrome: bool = True,
        row_limit: int = 20,
        sort_by_key: str | None = "cpu_time_total",
        group_by_input_shapes: bool = False,
        table_kwargs: Mapping[str, Any] = MappingProxyType({}),
        **profiler_kwargs: Any,
    ) -> None:
        super().__init__(dirpath, filename)
        _check_options(profiler_kwargs)
        self.export_to_chrome, self.row_limit, self.sort_by_key = export_to_chrome, row_limit, sort_by_key
        self.group_by_input_shapes, self.table_kwargs = group_by_input_shapes, dict(table_kwargs)
        self._options = {"record_shapes": True, **profiler_kwargs} if group_by_input_shapes else profiler_kwargs
        self.profiler: profile | None = None
        """The profiler of the running or the last run."""
        self._ranges: dict[str, Any] = {}

    def setup(self, stage: str, rank: int = 0, log_dir: str | None = None) -> None:
        """Start torch's profiler."""
        super().setup(stage, rank, log_dir)
        activities = list(supported_activities())  # type: ignore[no-untyped-call]
        self.profiler = profile(**{"activities": activities, **self._options})
        self.profiler.start()

    def start(self, action_name: str) -> None:
        """See :meth:`Profiler.start`."""
        if self.profiler is not None:
            self._ranges[action_name] = record_function(action_name)
            self._ranges[action_name].__enter__()

    def stop(self, action_name: str) -> None:
        """See :meth:`Profiler.stop`."""
        if action_name in self._ranges:
            self._ranges.pop(action_name).__exit__(None, None, None)
        if action_name in STEPS and self.profiler is not None and "schedule" in self._options:
            self.profiler.step()

    def summary(self) -> str:
        """The table of ``key_averages``; this ends the measurement."""
        if self.profiler is None:
            return ""
        self.profiler.stop()
        path = self.path(".json") if self.export_to_chrome else None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.profiler.export_chrome_trace(str(path))
        averages = self.profiler.key_averages(group_by_input_shape=self.group_by_input_shapes)
        options = {"sort_by": self.sort_by_key, "row_limit": self.row_limit, **self.table_kwargs}
        table: str = averages.table(**options)
        return table

    def teardown(self) -> None:
        """Forget torch's profiler."""
        self.profiler, self._ranges = None, {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "profiler": None, "_ranges": {}}


def _check_options(given: Mapping[str, Any]) -> None:
    known = list(inspect.signature(profile).parameters)
    for name in given:
        if name not in known:
            remedy = remedies("arguments", ["PyTorchProfiler"]).get(name)
            remedy = remedy or nearest(name, known).strip() or f"torch.profiler.profile has: {known}."
            raise WrongTypeError(f"PyTorchProfiler: unknown argument {name!r}. {remedy}")
