"""The rank of this process before any run exists, from the variables that the specs of cluster environments name.

No code of a plugin runs for it: its specs come from where discovery keeps them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import attrs

from ..environments.base import LAUNCHED, RankVariables, whole_number
from ..environments.local import claim_ranks, ranks_environ
from ..errors import BackendError
from ..registration import ClusterEnvironmentRegistry
from ..specs import ClusterEnvironmentSpec
from .loading import import_target

if TYPE_CHECKING:
    from .registry import Registry

_SETTINGS = ("CORE_PLUGINS", "CORE_PROBE_TIMEOUT", "XDG_CACHE_HOME", "HOME", "LOCALAPPDATA")
"""The variables that decide which plugins are found, and where their specs are kept."""
_is_asking = ContextVar("_is_asking", default=False)
"""Whether plugins are searched for, which logs messages: a handler or filter of these may ask for the rank again."""


def launched_ranks(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Rank and world size that a launcher has given to this process; ``(0, 1)`` without one.

    Args:
        environ: The environment variables; by default this process's.
    """
    environ = ranks_environ() if environ is None else environ
    if LAUNCHED in environ and "RANK" in environ:  # by a strategy: such a process does not scan for plugins
        return whole_number(environ, "RANK"), whole_number(environ, "WORLD_SIZE", low=1)
    if _is_asking.get():
        return 0, 1
    token = _is_asking.set(True)
    try:
        installed = _installed(tuple((name, environ.get(name, "")) for name in _SETTINGS), tuple(map(str, sys.path)))
    finally:
        _is_asking.reset(token)
    specs = by_priority([*installed, *ClusterEnvironmentRegistry.specs().values()])
    found = (ranks_by(spec, environ) for spec in specs)
    return next((ranks for ranks in found if ranks is not None), (0, 1))


@functools.cache
def _installed(settings: tuple[tuple[str, str], ...], path: tuple[str, ...]) -> list[Any]:
    """The cluster environments that are installed: found once, because each message that is logged may ask."""
    from .plugin_answers import Learning
    from .registry import Registry
    from .selection import survey

    environ = {name: value for name, value in settings if value}
    return Registry(survey(environ, path), {}, Learning(environ)).specs("cluster_environment")


def by_priority(specs: Iterable[Any]) -> list[Any]:
    """Cluster environments in the order in which they are asked whether they have started this process."""
    return sorted(specs, key=lambda spec: (-spec.priority, spec.name))


def has_started(registry: Registry, spec: Any, told: bool | str | None, environ: Mapping[str, str]) -> bool:
    """Whether a cluster environment has started the process with these variables.

    Args:
        registry: Where ``spec`` comes from.
        spec: The cluster environment.
        told: Its answer in :meth:`Registry.started`, if it has one.
        environ: The environment variables.

    Raises:
        Exception: What its detection raises.
    """
    if isinstance(told, str):
        raise BackendError(told)
    if told is None:
        told = (import_target(spec.detect) if spec.detect else registry.load(spec).detect)(environ)
    return bool(told)


def ranks_by(spec: ClusterEnvironmentSpec, environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and world size in the variables that ``spec`` names; ``None`` if its cluster has not started the process.

    Raises:
        ConfigurationError: The value of one of the two variables is not an integer.
    """
    spec = with_variables(spec)
    size = next((name for name in spec.size if name in environ), None)
    if size is None or spec.rank is None or any(name in environ for name in spec.excludes):
        return None
    if not all(name in environ for name in (spec.rank, *spec.requires)):
        return None
    processes = whole_number(environ, size, low=1)
    return (whole_number(environ, spec.rank), processes) if processes >= spec.min_processes else None


def claim_ranks_of(specs: Iterable[Any]) -> None:
    """Note that this process's ranks are its own, and not for the programs that it starts.

    Args:
        specs: All cluster environments that these programs may know.
    """
    specs = [with_variables(spec) for spec in specs]
    ranks = [spec.rank for spec in specs if spec.rank is not None]
    claim_ranks(ranks, (name for spec in specs for name in spec.process_variables))


def with_variables(spec: ClusterEnvironmentSpec) -> ClusterEnvironmentSpec:
    """The spec; that of a class that was registered in code, with the variables that the class names."""
    names = getattr(spec.target, "variables", None)
    if spec.rank is not None or not isinstance(names, RankVariables):
        return spec
    others = [name for name in (names.local_rank, names.local_size, names.node_rank) if name is not None]
    return attrs.evolve(spec, rank=names.rank, size=names.size, variables=others)
