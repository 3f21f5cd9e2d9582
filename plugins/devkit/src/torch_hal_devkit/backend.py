"""The backend under test."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import attrs

from torch_hal.discovery.loading import import_target
from torch_hal.discovery.registry import THIS_PROCESS, Registry
from torch_hal.discovery.scan import Row
from torch_hal.discovery.selection import VARIABLE
from torch_hal.errors import ConfigurationError, UnknownNameError, nearest, quoted
from torch_hal.kinds import KINDS

__all__ = ["BackendUnderTest"]


@attrs.frozen(eq=False)
class BackendUnderTest:
    """One backend, by the name that users pass.

    :meth:`find` reads metadata only; :attr:`spec` activates its plugin, :meth:`load` imports its class.
    """

    kind: str
    """A key of :data:`core.kinds.KINDS`."""
    name: str
    distribution: str
    """The distribution that provides it; ``this process`` if it was registered in code."""
    row: Row
    """Its row in the registry."""
    registry: Registry = attrs.field(repr=False)
    """The registry that it was found in."""
    environ: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The environment variables for resolution: those that select plugins, none with arguments of a run."""

    @classmethod
    def find(cls, kind: str, name: str, environ: Mapping[str, str]) -> BackendUnderTest:
        """Return the installed or registered backend of that name.

        Args:
            kind: A key of :data:`core.kinds.KINDS`.
            name: A name, not an alias; for accelerators also a device type that torch reports.
            environ: The environment variables, for ``CORE_PLUGINS``.

        Raises:
            ConfigurationError: ``kind`` is unknown.
            UnknownNameError: Nothing of that name is installed or registered.
        """
        if kind not in KINDS:
            raise ConfigurationError(f"kind={kind!r}: unknown kind of backend. Valid: {quoted(KINDS)}.")
        registry = Registry.read(environ, is_trusted=True)  # its author runs it; other probes tell what its import does
        rows = registry.rows(kind)
        named = [row for row in rows if row.name == name] or _serving(name, kind, registry)
        if not named:
            names = sorted({row.name for row in rows})
            raise UnknownNameError(
                f"{kind}={name!r}: not installed or registered. Valid: {quoted(names, near=name)}."
                + nearest(name, names)
            )
        usable = [row for row in named if row.state == "installed"]
        row = (usable or named)[0]
        kept = {variable: value for variable, value in environ.items() if variable == VARIABLE}
        return cls(kind, name, row.distribution, row, registry, kept)

    @property
    def is_registered_in_code(self) -> bool:
        """Whether it was registered in code, and so has no metadata."""
        return self.distribution == THIS_PROCESS

    @property
    def is_served(self) -> bool:
        """Whether another backend's ``discover`` provides the name, so that it has no metadata."""
        return self.name != self.row.name

    @property
    def spec(self) -> Any:
        """Its spec, from its plugin.

        Raises:
            BackendError: It is denied, incompatible, in conflict or broken.
        """
        spec: Any = self.registry.find(self.kind, self.row.name)[0]
        if self.is_served:
            init_args = {**spec.init_args, "name": self.name}
            return attrs.evolve(spec, name=self.name, aliases=(), discover=None, init_args=init_args)
        return spec

    def load(self) -> type[Any]:
        """Import and return its class.

        Raises:
            BackendError: The class cannot be imported, or is of another kind.
        """
        return self.registry.load(self.spec)

    def create(self, **more: Any) -> Any:
        """Create an instance, as resolution does.

        Args:
            **more: Further arguments for the class, such as a cluster environment's ``environ``.

        Raises:
            CoreError: The class rejects its arguments.
        """
        from torch_hal.plan.assembly import construct  # imports torch

        return construct(self.spec, self.load(), **more)

    def facts(self) -> dict[str, Any]:
        """Its metadata for the report, as plain data."""
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
    """The rows of accelerators whose ``discover`` provides ``name``."""
    if kind != "accelerator":
        return []
    specs: list[Any] = registry.specs(kind)
    serving = {spec.name for spec in specs if spec.discover and name in _served(spec.discover)}
    return [row for row in registry.rows(kind) if row.name in serving]
