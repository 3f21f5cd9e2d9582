"""Profiling a loop with torch's profiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.profiler import profile, schedule, supported_activities

from core.errors import ConfigurationError, quoted
from core.runtime.life import RunLife

__all__ = ["Profiling"]


class Profiling(RunLife):
    """The part of :class:`core.Runtime` that profiles."""

    @contextmanager
    def profile(
        self,
        *,
        activities: Sequence[str] | None = None,
        schedule_option: Mapping[str, int] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        output_trace_dir: str | os.PathLike[str] | None = None,
    ) -> Iterator[profile]:
        """A context with :class:`torch.profiler.profile`; each process has its own.

        Args:
            activities: What to record: names of :class:`torch.profiler.ProfilerActivity`; all that torch supports here
                by default.
            schedule_option: Arguments of :func:`torch.profiler.schedule`, such as ``{"wait": 1, "warmup": 1, "active":
                2}``; then call ``profiler.step()`` in each step.
            on_trace_ready: Called with the profiler when a trace is complete.
            record_shapes: Whether to record the shapes of operators' inputs.
            profile_memory: Whether to record memory.
            with_stack: Whether to record source lines.
            with_flops: Whether to estimate floating point operations.
            with_modules: Whether to record the modules that operators belong to.
            output_trace_dir: The folder for ``profile_<rank>.json``, a Chrome trace of each process.

        Raises:
            ConfigurationError: An activity is unknown or not supported here.
        """
        supported = {activity.name.lower(): activity for activity in supported_activities()}  # type: ignore[no-untyped-call]
        chosen = [name.lower() for name in activities] if activities is not None else list(supported)
        for name in chosen:
            if name not in supported:
                raise ConfigurationError(
                    f"activities: {name!r} cannot be profiled here. Valid: {quoted(sorted(supported))}."
                )
        profiler = profile(
            activities=[supported[name] for name in chosen],
            schedule=None if schedule_option is None else schedule(**schedule_option),
            on_trace_ready=on_trace_ready,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
        )
        with profiler:
            yield profiler
        if output_trace_dir is not None:
            os.makedirs(output_trace_dir, exist_ok=True)
            profiler.export_chrome_trace(str(Path(output_trace_dir) / f"profile_{self.process_index}.json"))
