"""Specs: frozen, torch-free descriptions of backends, which plugins return from their hooks.

A spec is data. Creating one neither imports torch nor accesses hardware; ``target`` and ``detect`` are strings of the
form ``"package.module:attribute"``, imported only when the backend is used or probed. For an in-process registration
(:class:`core.AcceleratorRegistry`) ``target`` can be the class itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import repeat
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


def _tuple(value: Any) -> Any:
    # A bare string would become a tuple of letters.
    return (value,) if isinstance(value, str) else tuple(value)


def _frozen_mapping(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(value))


@attrs.frozen(kw_only=True)
class BackendSpec:
    """The fields of every kind of backend."""

    kind: ClassVar[str]

    name: str
    """The backend's name; equal to the entry point's key."""
    target: str | Any
    """``"module:Class"``, imported when the backend is used; the class itself for in-process registrations."""
    description: str = ""
    """One sentence for listings."""
    aliases: tuple[str, ...] = attrs.field(default=(), converter=_tuple)
    """Further names. Several backends can claim an alias: the available one with the highest ``priority`` gets it."""
    priority: int = 50
    """The order of candidates for ``auto`` and for a shared alias; the highest comes first."""
    init_args: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen_mapping)
    """Keyword arguments that ``target`` is called with, so that one class can serve several names."""

    _targets: ClassVar[tuple[str, ...]] = ()
    """The fields, besides ``target``, that name what is imported; ``None`` for nothing."""
    _integers: ClassVar[tuple[str, ...]] = ("priority",)

    def __attrs_post_init__(self) -> None:
        # In one place, since core's own specs are made in each run.
        kind = type(self).__name__
        for field, name in (("name", self.name), *zip(repeat("aliases"), self.aliases)):
            if (
                not isinstance(name, str)
                or not name
                or name != name.strip()
                or not name.isprintable()
                or name == "auto"
            ):
                raise ValueError(f"{field}={name!r} of {kind}: expected a non-empty printable name, other than 'auto'")
        for field in ("target", *self._targets):
            value = getattr(self, field)
            is_named = isinstance(value, str) and _TARGET.fullmatch(value)
            if not is_named and not (callable(value) if field == "target" else value is None):
                raise ValueError(f"{field}={value!r} of {kind} {self.name!r}: expected 'package.module:attribute'")
        for field in self._integers:
            value = getattr(self, field)
            is_left_out = value is None and attrs.fields_dict(type(self))[field].default is None
            if not isinstance(value, int) and not is_left_out:
                raise ValueError(f"{field}={value!r} of {kind} {self.name!r}: expected an integer")


@attrs.frozen(kw_only=True)
class AcceleratorSpec(BackendSpec):
    """Describes an :class:`core.Accelerator`."""

    kind: ClassVar[str] = "accelerator"
    _targets = ("detect", "discover")

    detect: str | None = None
    """``"module:function"`` without arguments that returns the number of devices, quickly and without torch. An
    exception means that the hardware's state could not be read, and is recorded. It runs in a separate process with a
    time limit. Without it, the class's ``is_available`` and ``auto_device_count`` are used."""
    default_strategy: str | None = None
    """The name of the strategy for ``strategy="auto"`` with one process; ``None`` for the class's default."""
    default_parallel_strategy: str | None = None
    """The name of the strategy for ``strategy="auto"`` with several processes; ``None`` for the class's default."""
    discover: str | None = None
    """``"module:function"`` without arguments that returns further names of this backend, best first. Each can be used
    like any name; ``target`` is then called with ``name=`` that name. Names that an installed backend owns are
    excluded."""


@attrs.frozen(kw_only=True)
class StrategySpec(BackendSpec):
    """Describes a :class:`core.Strategy`."""

    kind: ClassVar[str] = "strategy"
    _integers = ("priority", "min_processes", "max_processes")

    accelerators: tuple[str, ...] | None = attrs.field(default=None, converter=attrs.converters.optional(_tuple))
    """Names of the supported accelerators, among those that its class supports; ``None`` for all of them."""
    min_processes: int = 1
    """The smallest supported world size, if its class supports it."""
    max_processes: int | None = None
    """The largest supported world size, if its class supports it; ``None`` for any."""
    precisions: tuple[str, ...] | None = attrs.field(default=None, converter=attrs.converters.optional(_tuple))
    """Names of the supported precisions, among those that its class supports; ``None`` for all of them."""


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
    _targets = ("detect",)
    _integers = ("priority", "min_processes")

    detect: str | None = None
    """``"module:function"`` that takes the environment variables as a mapping and returns, without torch, whether the
    cluster started this process. Without it, the class's ``detect`` is used."""

    # What a process must know before a run, when no plugin's code may run in it: which messages are its to log, and
    # which variables are not for the programs that it starts.
    rank: str | None = None
    """The environment variable with the rank of the process; ``None`` if no variable has it."""
    size: tuple[str, ...] = attrs.field(default=(), converter=_tuple)
    """The variable with the number of processes; of several, the first that is set counts. Without any, ``rank`` counts
    only once there is a run, because it has another meaning, such as the rank of a machine."""
    requires: tuple[str, ...] = attrs.field(default=(), converter=_tuple)
    """Further variables that are set in every process that the cluster has started."""
    excludes: tuple[str, ...] = attrs.field(default=(), converter=_tuple)
    """Variables of which none is set in such a process: another launcher has set ``rank`` and ``size`` then."""
    min_processes: int = 1
    """The smallest number of processes that counts; 2 if a process that is alone is to be a run like any other."""
    variables: tuple[str, ...] = attrs.field(default=(), converter=_tuple)
    """All other variables that belong to one process, such as its rank on its machine. In a program that the process
    starts, which inherits them, they are ignored: it is no rank of this run."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for name in (*self.process_variables, *self.requires, *self.excludes):
            if not (isinstance(name, str) and name and name.isprintable() and not {*"=,"} & {*name}):
                raise ValueError(
                    f"{name!r} of {type(self).__name__} {self.name!r}: expected the name of an environment variable"
                )

    @property
    def process_variables(self) -> tuple[str, ...]:
        """All variables that belong to one process."""
        return (*(() if self.rank is None else (self.rank,)), *self.size, *self.variables)
