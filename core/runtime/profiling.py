"""Profiling a loop with torch's profiler."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from torch.profiler import profile, schedule, supported_activities

from ..errors import ConfigurationError, WrongTypeError, nearest, quoted
from ..hints.argument_checks import check_path, suggest_arguments_of
from ..strategies.base import Strategy

__all__ = ["ProfileKwargs", "Profiling"]


@suggest_arguments_of
@attrs.frozen
class ProfileKwargs:
    """The arguments of :meth:`core.Runtime.profile`, as an object."""

    activities: Sequence[str] | None = None
    schedule_option: Mapping[str, int] | None = None
    on_trace_ready: Callable[[profile], Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | os.PathLike[str] | None = None


class Profiling:
    """What profiles a loop.

    Args:
        strategy: Of the run.
        default: The arguments that are used where none are given.
    """

    def __init__(self, strategy: Strategy, default: ProfileKwargs | None) -> None:
        self._strategy, self._default = strategy, default

    @contextmanager
    def profile(self, profile_handler: ProfileKwargs | None, given: ProfileKwargs) -> Iterator[profile]:
        """See :meth:`core.Runtime.profile`."""
        if profile_handler is not None and given != ProfileKwargs():
            raise ConfigurationError("profile_handler: given next to other arguments of profile. Pass one of the two.")
        fields = [field.name for field in attrs.fields(ProfileKwargs)]
        if profile_handler is not None and not all(hasattr(profile_handler, name) for name in fields):
            raise WrongTypeError(
                f"profile_handler={profile_handler!r}: must be a core.ProfileKwargs. Or pass its arguments by name: "
                "profile(activities=['cpu'])."
            )
        if given == ProfileKwargs():
            given = profile_handler or self._default or given
        with _profiled(given) as profiler:
            yield profiler
        if given.output_trace_dir is not None:
            os.makedirs(given.output_trace_dir, exist_ok=True)
            profiler.export_chrome_trace(
                str(Path(given.output_trace_dir) / f"profile_{self._strategy.global_rank}.json")
            )


def _check(given: ProfileKwargs) -> None:
    """Check the types, which torch's profiler finds out only at the end of the block.

    Raises:
        WrongTypeError: One is wrong.
        ConfigurationError: ``schedule_option`` has an unknown key, or lacks one.
    """
    if isinstance(given.activities, str):
        raise WrongTypeError(f"activities={given.activities!r}: must be a list. Write [{given.activities!r}].")
    if given.on_trace_ready is not None and not callable(given.on_trace_ready):
        raise WrongTypeError(
            f"on_trace_ready={given.on_trace_ready!r}: must be a function that takes the profiler. For a folder, set "
            "output_trace_dir."
        )
    check_path("output_trace_dir", given.output_trace_dir)
    option = given.schedule_option
    if option is None:
        return
    if not isinstance(option, Mapping):
        raise WrongTypeError(
            f"schedule_option={option!r}: must be a dict, such as {{'wait': 1, 'warmup': 1, 'active': 2}}."
        )
    signature = inspect.signature(schedule)
    unknown = next((key for key in option if key not in signature.parameters), None)
    problem = f"there is no {unknown!r}.{nearest(str(unknown), signature.parameters)}"
    try:
        signature.bind(**option)
    except TypeError as error:
        raise ConfigurationError(
            f"schedule_option={dict(option)!r}: {f'{error}.' if unknown is None else problem} Valid: "
            f"{quoted(signature.parameters)}."
        ) from None


def _profiled(given: ProfileKwargs) -> profile:
    _check(given)
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
