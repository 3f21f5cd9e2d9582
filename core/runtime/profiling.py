"""Profiling a loop with torch's profiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from torch.profiler import profile, schedule, supported_activities

from core.errors import ConfigurationError, quoted
from core.runtime.life import RunLife

__all__ = ["ProfileKwargs", "Profiling"]


@attrs.frozen
class ProfileKwargs:
    """The arguments of :meth:`Profiling.profile`, as an object."""

    activities: Sequence[str] | None = None
    schedule_option: Mapping[str, int] | None = None
    on_trace_ready: Callable[[profile], Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | os.PathLike[str] | None = None


class Profiling(RunLife):
    """The part of :class:`core.Runtime` that profiles."""

    _profile_kwargs: ProfileKwargs | None = None
    """What :meth:`profile` uses if it is given nothing."""

    @contextmanager
    def profile(
        self,
        profile_handler: ProfileKwargs | None = None,
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
            profile_handler: The other arguments, as an object; by default the one among ``kwargs_handlers``.
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
            ConfigurationError: An activity is unknown or not supported here, or arguments are given next to an object.
        """
        given = ProfileKwargs(
            activities,
            schedule_option,
            on_trace_ready,
            record_shapes,
            profile_memory,
            with_stack,
            with_flops,
            with_modules,
            output_trace_dir,
        )
        if profile_handler is not None and given != ProfileKwargs():
            raise ConfigurationError("profile_handler: given next to other arguments of profile. Pass one of the two.")
        if given == ProfileKwargs():
            given = profile_handler or self._profile_kwargs or given
        with _profiled(given) as profiler:
            yield profiler
        if given.output_trace_dir is not None:
            os.makedirs(given.output_trace_dir, exist_ok=True)
            profiler.export_chrome_trace(str(Path(given.output_trace_dir) / f"profile_{self.process_index}.json"))


def _profiled(given: ProfileKwargs) -> profile:
    supported = {activity.name.lower(): activity for activity in supported_activities()}  # type: ignore[no-untyped-call]
    chosen = [name.lower() for name in given.activities] if given.activities is not None else list(supported)
    for name in chosen:
        if name not in supported:
            raise ConfigurationError(
                f"activities: {name!r} cannot be profiled here. Valid: {quoted(sorted(supported))}."
            )
    return profile(
        activities=[supported[name] for name in chosen],
        schedule=None if given.schedule_option is None else schedule(**given.schedule_option),
        on_trace_ready=given.on_trace_ready,
        record_shapes=given.record_shapes,
        profile_memory=given.profile_memory,
        with_stack=given.with_stack,
        with_flops=given.with_flops,
        with_modules=given.with_modules,
    )
