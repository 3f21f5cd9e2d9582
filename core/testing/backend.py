"""The backend that a suite is about."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import attrs

from core.discovery.loading import import_target
from core.discovery.registry import THIS_PROCESS, Registry
from core.discovery.scan import Row
from core.discovery.states import VARIABLE
from core.errors import ConfigurationError, UnknownNameError, nearest, quoted
from core.kinds import KINDS

__all__ = ["BackendUnderTest"]


@attrs.frozen(eq=False)
class BackendUnderTest:
    """One backend, by the name that users will ask for it by.

    Finding it reads metadata only; asking for :attr:`spec` activates its plugin, :meth:`load` imports its class.
    """

    kind: str
    """A key of :data:`core.kinds.KINDS`."""
    name: str
    distribution: str
    """The distribution that provides it; ``this process`` for what was registered in code."""
    row: Row
    """What discovery found out about it."""
    registry: Registry = attrs.field(repr=False)
    """The registry that it was found in."""
    environ: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The environment variables that a resolution of it takes: what decides among plugins, and no word for a run."""

    @classmethod
    def find(cls, kind: str, name: str, environ: Mapping[str, str]) -> BackendUnderTest:
        """The installed or registered backend of that name.

        Args:
            kind: A key of :data:`core.kinds.KINDS`.
            name: A name, no alias; of an accelerator also a device type that torch reports.
            environ: The environment variables, for ``CORE_PLUGINS``.

        Raises:
            ConfigurationError: There is no such kind.
            UnknownNameError: Nothing of that name is installed or registered.
        """
        if kind not in KINDS:
            raise ConfigurationError(f"kind={kind!r}: no kind of backend. Valid: {quoted(KINDS)}.")
        registry = Registry.read(environ)
        rows = registry.rows(kind)
        named = [row for row in rows if row.name == name] or _serving(name, kind, registry)
        if not named:
            names = sorted({row.name for row in rows})
            raise UnknownNameError(
                f"{kind}={name!r}: nothing of this name is installed or registered. Valid: {quoted(names)}."
                + nearest(name, names)
            )
        usable = [row for row in named if row.state == "installed"]
        row = (usable or named)[0]
        kept = {variable: value for variable, value in environ.items() if variable == VARIABLE}
        return cls(kind, name, row.distribution, row, registry, kept)

    @property
    def is_registered_in_code(self) -> bool:
        """Whether it has no metadata, because code of this process registered it."""
        return self.distribution == THIS_PROCESS

    @property
    def is_served(self) -> bool:
        """Whether it is a further name of a backend that serves several, and so has no metadata of its own."""
        return self.name != self.row.name

    @property
    def spec(self) -> Any:
        """What its plugin says of it.

        Raises:
            BackendError: It is denied, incompatible, in conflict or broken.
        """
        spec: Any = self.registry.find(self.kind, self.row.name)[0]
        if self.is_served:
            init_args = {**spec.init_args, "name": self.name}
            return attrs.evolve(spec, name=self.name, aliases=(), serves=None, init_args=init_args)
        return spec

    def load(self) -> type[Any]:
        """Its class.

        Raises:
            BackendError: It cannot be imported, or is of another kind.
        """
        return self.registry.load(self.spec)

    def create(self, **more: Any) -> Any:
        """A new instance, as resolution makes one.

        Args:
            **more: Further arguments for the class, such as a cluster environment's ``environ``.

        Raises:
            CoreError: The class refuses what it is called with.
        """
        from core.plan.construction import construct  # imports torch

        return construct(self.spec, self.load(), **more)

    def facts(self) -> dict[str, Any]:
        """What the report says of it, as plain data; of metadata alone."""
        row = self.row
        return {
            "kind": self.kind,
            "name": self.name,
            "distribution": row.distribution,
            "version": row.version,
            "requires": list(row.requires),
        }

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@cache
def _served(function: str) -> tuple[str, ...]:
    return tuple(import_target(function)())


def _serving(name: str, kind: str, registry: Registry) -> list[Row]:
    """The rows of accelerators that serve ``name`` beside their own."""
    if kind != "accelerator":
        return []
    specs: list[Any] = registry.specs(kind)
    serving = {spec.name for spec in specs if spec.serves and name in _served(spec.serves)}
    return [row for row in registry.rows(kind) if row.name in serving]
