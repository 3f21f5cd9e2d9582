"""The argument ``plugins``: backends that are sorted into the arguments of their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.checking import instead_of_class
from core.checkpoints.base import CheckpointIO
from core.discovery.registry import Registry
from core.environments.base import ClusterEnvironment
from core.environments.inherited import own_environ
from core.errors import ConfigurationError, UnknownNameError, WrongTypeError, nearest, quoted
from core.kinds import KINDS
from core.precisions.base import Precision

__all__ = ["with_plugins"]

PLUGINS: Mapping[str, type[Any]] = {
    "precision": Precision,
    "checkpoint_io": CheckpointIO,
    "cluster_environment": ClusterEnvironment,
}


def with_plugins(plugins: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for backends, with each of ``plugins`` as the argument of its kind.

    Args:
        plugins: A Precision, CheckpointIO or ClusterEnvironment, or the name of one; or a list of these; or ``None``.
        arguments: The arguments for backends, as the user gave them.

    Raises:
        WrongTypeError: A plugin is of another kind.
        UnknownNameError: No backend of these kinds has the name.
        ConfigurationError: Two plugins are of one kind, or an argument already says what to use.
    """
    found = dict(arguments)
    for plugin in [] if plugins is None else plugins if isinstance(plugins, list | tuple) else [plugins]:
        kind = _kind_of_name(plugin) if isinstance(plugin, str) else _kind_of(plugin)
        given = found[kind]
        if not (isinstance(given, str) and given == "auto"):
            where = "plugins" if arguments[kind] is not given else f"{kind}={given!r}"
            raise ConfigurationError(
                f"plugins: {plugin!r} is a {kind}, and {where} has another one, {given!r}. Give one of them."
            )
        found[kind] = plugin
    return found


def _kind_of(plugin: Any) -> str:
    kind = next((kind for kind, base in PLUGINS.items() if isinstance(plugin, base)), None)
    if kind is None:
        raise WrongTypeError(
            f"plugins: {plugin!r} is not a plugin. Pass a Precision, a CheckpointIO or a ClusterEnvironment, or its "
            f"name; accelerator, strategy and callbacks are arguments themselves.{instead_of_class(plugin)}"
        )
    return kind


def _kind_of_name(name: str) -> str:
    registry = Registry.read(own_environ())
    names = {kind: registry.names(kind) for kind in PLUGINS}
    kinds = [kind for kind in PLUGINS if name in names[kind]]
    if len(kinds) == 1:
        return kinds[0]
    if kinds:
        raise ConfigurationError(f"plugins: {name!r} is the name of a {' and of a '.join(kinds)}. Pass {kinds[0]}=.")
    other = next((kind for kind in KINDS if kind not in PLUGINS and name in registry.names(kind)), None)
    if other is not None:
        raise UnknownNameError(f"plugins: {name!r} is of another kind. Pass {other}={name!r}.")
    every = sorted({one for known in names.values() for one in known})
    raise UnknownNameError(f"plugins: {name!r} is unknown.{nearest(name, every)} Valid: {quoted(every, near=name)}.")
