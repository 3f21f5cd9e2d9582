"""Specs: the frozen, torch-free description of one backend that a plugin hands over.

A spec is data. Creating one imports no torch and touches no hardware; ``target`` and ``detect`` are strings of the
form ``"package.module:attribute"``, imported only when the backend is used or probed. An in-process registration
(:class:`core.AcceleratorRegistry`) may give the class itself as ``target``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import attrs

__all__ = [
    "AcceleratorSpec",
    "BackendSpec",
    "CheckpointIOSpec",
    "ClusterEnvironmentSpec",
    "PrecisionSpec",
    "StrategySpec",
]

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def _name(instance: Any, attribute: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str) or not value or value != value.strip() or not value.isprintable() or value == "auto":
        raise ValueError(
            f"{attribute.name}={value!r} of {type(instance).__name__}: expected a non-empty printable name, other "
            "than 'auto'"
        )


def _names(instance: Any, attribute: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]) -> None:
    for item in value:
        _name(instance, attribute, item)  # type: ignore[arg-type]


def _integer(instance: Any, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, int) and not (value is None and attribute.default is None):
        raise ValueError(
            f"{attribute.name}={value!r} of {type(instance).__name__} {instance.name!r}: expected a whole number"
        )


def _target(instance: Any, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is None and attribute.default is None:
        return
    if isinstance(value, str) and _TARGET.fullmatch(value):
        return
    if attribute.name == "target" and callable(value):
        return
    raise ValueError(
        f"{attribute.name}={value!r} of {type(instance).__name__} {instance.name!r}: expected "
        "'package.module:attribute'"
    )


def _tuple(value: Any) -> Any:
    # A bare string here is a classic slip: it would become a tuple of letters.
    return (value,) if isinstance(value, str) else tuple(value)


def _optional_tuple(value: Any) -> Any:
    return None if value is None else _tuple(value)


def _frozen_mapping(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(value))


@attrs.frozen(kw_only=True)
class BackendSpec:
    """What every kind of backend says of itself."""

    kind: ClassVar[str]

    name: str = attrs.field(validator=_name)
    """The backend's name; equal to the entry point's key."""
    target: str | Any = attrs.field(validator=_target)
    """``"module:Class"``, imported when the backend is used; the class itself for in-process registrations."""
    description: str = ""
    """One sentence for listings."""
    aliases: tuple[str, ...] = attrs.field(default=(), converter=_tuple, validator=_names)
    """Further words for it. Several backends may claim one alias: the best present one by ``priority`` gets it."""
    priority: int = attrs.field(default=50, validator=_integer)
    """Order among candidates for ``auto`` and for a shared alias; higher goes first."""
    init_args: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen_mapping)
    """Keyword arguments that ``target`` is called with, so that one class serves several names."""


@attrs.frozen(kw_only=True)
class AcceleratorSpec(BackendSpec):
    """Describes an :class:`core.Accelerator`."""

    kind: ClassVar[str] = "accelerator"

    detect: str | None = attrs.field(default=None, validator=_target)
    """``"module:function"`` without arguments, torch-free and quick: how many devices are there (0 for none). An
    exception means the hardware's state could not be read, and is recorded. Run outside this process, with a time
    limit. Where absent, the class's own ``is_available`` and ``auto_device_count`` answer."""
    default_strategy: str | None = None
    """Name of the strategy that ``strategy="auto"`` means for one process; ``None`` for what the class says."""
    default_parallel_strategy: str | None = None
    """Name of the strategy that ``strategy="auto"`` means for several processes; ``None`` for what the class says."""
    serves: str | None = attrs.field(default=None, validator=_target)
    """``"module:function"`` without arguments: further names this one backend can serve at this moment, best first.
    Each is asked for like a name of its own; ``target`` is then called with ``name=`` that name. Names that an
    installed backend owns are not offered to it."""


@attrs.frozen(kw_only=True)
class StrategySpec(BackendSpec):
    """Describes a :class:`core.Strategy`."""

    kind: ClassVar[str] = "strategy"

    accelerators: tuple[str, ...] | None = attrs.field(default=None, converter=_optional_tuple)
    """Names of the accelerators it serves, of those that its class serves; ``None`` for all of them."""
    min_processes: int = attrs.field(default=1, validator=_integer)
    """The smallest world size it serves, if its class serves that."""
    max_processes: int | None = attrs.field(default=None, validator=_integer)
    """The largest world size it serves, if its class serves that; ``None`` for any."""
    precisions: tuple[str, ...] | None = attrs.field(default=None, converter=_optional_tuple)
    """Names of the precisions it serves, of those that its class serves; ``None`` for all of them."""


@attrs.frozen(kw_only=True)
class PrecisionSpec(BackendSpec):
    """Describes a :class:`core.Precision`."""

    kind: ClassVar[str] = "precision"


@attrs.frozen(kw_only=True)
class CheckpointIOSpec(BackendSpec):
    """Describes a :class:`core.CheckpointIO`."""

    kind: ClassVar[str] = "checkpoint_io"


@attrs.frozen(kw_only=True)
class ClusterEnvironmentSpec(BackendSpec):
    """Describes a :class:`core.ClusterEnvironment`."""

    kind: ClassVar[str] = "cluster_environment"

    detect: str | None = attrs.field(default=None, validator=_target)
    """``"module:function"`` taking the environment variables as a mapping, torch-free: whether this process was
    started by that cluster. Where absent, the class's own ``detect`` answers."""
