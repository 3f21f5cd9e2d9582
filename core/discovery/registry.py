"""The names of all backends, installed and registered in code, and whose they are."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from core import registration
from core.discovery.activation import Activation, activate
from core.discovery.loading import import_target, load, target_name
from core.discovery.scan import Row
from core.discovery.states import Survey, survey
from core.errors import BackendError, UnknownNameError, nearest, quoted
from core.kinds import KINDS
from core.specs import AcceleratorSpec, BackendSpec

__all__ = ["Registry"]

logger = logging.getLogger(__name__)

THIS_PROCESS = "this process"
"""Stands for the distribution of what was registered in code."""


class Registry:
    """What can be asked for by name, as it stood when the registry was read.

    A plugin is activated when one of its names is asked for, and at most once in a registry's life.

    Args:
        found: What is installed.
        registered: By kind and name, the specs registered in code.
    """

    def __init__(self, found: Survey, registered: Mapping[str, Mapping[str, BackendSpec]]) -> None:
        self._rows = found.rows
        self._registered = registered
        self._activations: dict[tuple[str, str], Activation] = {}
        self._causes: dict[tuple[str, str, str], BaseException | None] = {}
        for text in found.warnings:
            logger.warning("%s", text)

    @classmethod
    def read(cls, environ: Mapping[str, str], *, path: Sequence[str] | None = None) -> Registry:
        """Everything there is now: installed, as ``CORE_PLUGINS`` allows, and registered in this process.

        Args:
            environ: The environment variables.
            path: Where installed distributions are looked for; ``sys.path`` where nothing is given.

        Raises:
            ConfigurationError: ``CORE_PLUGINS`` is malformed.
        """
        return cls(survey(environ, path), {kind: registry.specs() for kind, registry in _code_registries().items()})

    def rows(self, kind: str | None = None) -> list[Row]:
        """Every backend found, with its state as far as it is known by now; ordered by kind, name, distribution."""
        kinds = list(KINDS) if kind is None else [kind]
        rows = [row for row in self._rows if row.kind in kinds]
        rows += [_registered_row(spec) for each in kinds for spec in self._registered[each].values()]
        return sorted(rows, key=lambda row: (kinds.index(row.kind), row.name, row.distribution))

    def names(self, kind: str) -> list[str]:
        """The names that can be asked for; without the aliases."""
        return sorted({row.name for row in self.rows(kind) if row.state == "installed"})

    def find(self, kind: str, word: str, *, argument: str | None = None) -> list[BackendSpec]:
        """Who ``word`` means: the one backend of that name, or all that claim it as an alias.

        Args:
            kind: A key of :data:`core.kinds.KINDS`.
            word: A name or an alias.
            argument: What messages call the source of the word; ``kind`` where nothing is given.

        Returns:
            At least one spec; several by priority, highest first, then by name.

        Raises:
            UnknownNameError: Nobody claims the word.
            BackendError: Whoever has the name is denied, incompatible, in conflict or broken.
        """
        subject = f"{argument or kind}={word!r}"
        spec = self._named(kind, word, subject)
        if spec is not None:
            return [spec]
        claimants: list[BackendSpec] = []
        if not self._holders(kind, word):
            claimants = [spec for spec in self.specs(kind) if word in spec.aliases]
        if claimants:
            return sorted(claimants, key=lambda spec: (-spec.priority, spec.name))
        raise self._unusable(kind, word, subject) if self._holders(kind, word) else self._unknown(kind, word, subject)

    def specs(self, kind: str) -> list[BackendSpec]:
        """All usable backends by name; activates every plugin that has one of that kind."""
        specs: list[BackendSpec] = []
        for name in self.names(kind):
            try:
                spec = self._named(kind, name, f"{kind} {name!r}")
            except BackendError as error:
                logger.warning("%s", error)
            else:
                specs += [spec] if spec is not None else []
        return specs

    def spec(self, row: Row) -> BackendSpec | None:
        """The spec of an installed backend; ``None`` where it is or turns out to be unusable, as the row then says."""
        activation = self._activated(row) if row.state == "installed" else None
        return activation.specs.get((row.kind, row.name)) if activation is not None else None

    def failures(self, kind: str) -> list[Row]:
        """The backends of that kind found broken so far."""
        return [row for row in self._rows if row.kind == kind and row.state == "failed"]

    def origin(self, spec: BackendSpec) -> str:
        """Distribution and version that ``spec`` came from; ``this process`` if it was registered or made in code."""
        if self._registered[spec.kind].get(spec.name) is not spec:
            handed = [
                (own, row) for row in self._rows if row.kind == spec.kind and (own := self._handed(row)) is not None
            ]
            for own, row in handed:
                if own.name == spec.name:
                    return row.origin
            for own, row in handed:  # made from it, under another name
                if own.target == spec.target:
                    return row.origin
        return THIS_PROCESS

    def load(self, spec: BackendSpec) -> type[Any]:
        """The class that ``spec`` is about.

        Raises:
            BackendError: The target cannot be imported, or is no class derived from its kind's base.
        """
        return load(spec, self.origin(spec))

    def served(self, spec: AcceleratorSpec) -> list[str]:
        """The further names that ``spec`` can serve now; those that a backend has are left to it.

        Raises:
            Exception: Whatever the spec's function raises.
        """
        owned = {row.name for row in self.rows(spec.kind)}
        return [name for name in import_target(spec.serves)() if name not in owned] if spec.serves else []

    # -- installed and registered ------------------------------------------------------------------------------------

    def _holders(self, kind: str, name: str) -> list[Row]:
        return [row for row in self._rows if row.kind == kind and row.name == name]

    def _named(self, kind: str, name: str, subject: str) -> BackendSpec | None:
        registered = self._registered[kind].get(name)
        usable = (spec for row in self._holders(kind, name) if (spec := self.spec(row)) is not None)
        installed = next(usable, None)
        if registered is None or installed is None:
            return registered or installed
        here, there = target_name(registered.target), target_name(installed.target)
        if here != there:
            raise BackendError(
                f"{subject}: {here} is registered in this process under the name that {there} of "
                f"{self.origin(installed)} has. Valid: another name for the registration."
            )
        return installed

    def _handed(self, row: Row) -> BackendSpec | None:
        activation = self._activations.get((row.distribution, row.module))
        return activation.specs.get((row.kind, row.name)) if activation and row.state == "installed" else None

    def _activated(self, row: Row) -> Activation:
        key = row.distribution, row.module
        if key not in self._activations:
            rows = [other for other in self._rows if (other.distribution, other.module) == key]
            declared: dict[str, set[str]] = {}
            for other in rows:
                declared.setdefault(other.kind, set()).add(other.name)
            self._activations[key] = activation = activate(row.module, declared)
            self._record(row, rows, activation)
        return self._activations[key]

    def _record(self, row: Row, rows: list[Row], activation: Activation) -> None:
        """Put into the rows of one plugin module what its activation showed."""
        for (kind, name), failure in activation.failures.items():
            failed = next((other for other in rows if (other.kind, other.name) == (kind, name)), None)
            if failed is None:  # handed over, but not declared
                failed = Row(
                    kind=kind, name=name, distribution=row.distribution, version=row.version, module=row.module
                )
                self._rows.append(failed)
            if failed.state == "installed":
                failed.state, failed.reason, failed.detail = "failed", failure.reason, failure.traceback
                self._causes[kind, name, row.distribution] = failure.cause
        for reason in sorted({failure.reason for failure in activation.failures.values()}):
            logger.warning("%s is broken: %s", row.origin, reason)
        for other in rows:
            spec = activation.specs.get((other.kind, other.name))
            if spec is not None:
                other.aliases = spec.aliases
            if activation.output:
                other.detail += f"printed while it was activated:\n{activation.output}"

    # -- messages ----------------------------------------------------------------------------------------------------

    def _unusable(self, kind: str, word: str, subject: str) -> BackendError:
        rows = self._holders(kind, word)
        reasons: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            reasons.setdefault((row.state, row.reason), []).append(row.origin)
        text = "; ".join(f"{state} ({' and '.join(whose)}): {reason}" for (state, reason), whose in reasons.items())
        error = BackendError(f"{subject}: {text}. Usable: {quoted(self.names(kind))}.")
        causes = (self._causes.get((row.kind, row.name, row.distribution)) for row in rows)
        error.__cause__ = next((cause for cause in causes if cause is not None), None)
        return error

    def _unknown(self, kind: str, word: str, subject: str) -> UnknownNameError:
        names = self.names(kind)
        aliases = sorted({alias for row in self.rows(kind) for alias in row.aliases or ()})
        text = f"{subject}: no installed or registered {kind} has this name. Valid: {quoted(names)}"
        text += f", or as an alias {quoted(aliases)}." if aliases else "."
        broken = sorted({row.origin for row in self.failures(kind)})
        if broken:
            text += f" Broken, and so not asked for aliases: {', '.join(broken)}."
        return UnknownNameError(text + nearest(word, [*names, *aliases]))


def _registered_row(spec: BackendSpec) -> Row:
    row = Row(kind=spec.kind, name=spec.name, distribution=THIS_PROCESS, module=target_name(spec.target))
    row.aliases = spec.aliases
    return row


def _code_registries() -> dict[str, registration.CodeRegistry]:
    registries = (
        registration.AcceleratorRegistry,
        registration.StrategyRegistry,
        registration.PrecisionRegistry,
        registration.CheckpointIORegistry,
        registration.ClusterEnvironmentRegistry,
    )
    return {registry.kind: registry for registry in registries}
