"""The names of all backends, installed and registered in code, and the distributions that they come from."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import attrs

from ..errors import LONGEST_LIST, BackendError, UnknownNameError, harmless, nearest, quoted, shortened
from ..hints.remedies import known_names, package, providers, remedies
from ..kinds import KINDS
from ..registration import REGISTRIES
from ..specs import AcceleratorSpec, BackendSpec
from .activation import Activation, Elsewhere, activate, activate_watched, load_watched
from .loading import import_target, load, target_name
from .plugin_answers import Learning, Verdict
from .scan import Row, normalized
from .selection import Survey, survey, why_unusable

logger = logging.getLogger(__name__)

THIS_PROCESS = "this process"
"""The distribution shown for a backend that was registered in code."""

_NONE: Mapping[str, BackendSpec] = MappingProxyType({})


class Registry:
    """The backends that can be selected by name, as they were when the registry was read.

    A plugin is activated when one of its names is looked up, at most once for each registry: core's own in this
    process, any other in a separate one.

    Args:
        found: What is installed.
        registered: By kind and name, the specs registered in code.
        learning: Activates plugins in a separate process; without it, they are activated in this one.
        overriding: By kind, the registered names that are used in place of an installed plugin's.
    """

    def __init__(
        self,
        found: Survey,
        registered: Mapping[str, Mapping[str, BackendSpec]],
        learning: Learning | None = None,
        overriding: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        self._learning, self._overriding = learning, overriding
        self._rows = found.rows
        self._by_module: dict[tuple[str, str], list[Row]] = {}
        self._by_name: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
        self._index(found.rows)
        self._registered = {**dict.fromkeys(KINDS, _NONE), **registered}
        self._activations: dict[tuple[str, str], Activation] = {}
        self._looked_up: set[tuple[str, str]] = set()
        self._causes: dict[tuple[str, str, str], BaseException | None] = {}
        for text in found.warnings:
            logger.warning("%s", harmless(text))
        for row in found.rows if logger.isEnabledFor(logging.DEBUG) else ():
            logger.debug(
                "%s %r of %s is %s%s", row.kind, row.name, row.origin, row.state, row.reason and f": {row.reason}"
            )

    @classmethod
    def read(
        cls, environ: Mapping[str, str], *, path: Sequence[str] | None = None, is_trusted: bool = False
    ) -> Registry:
        """What is installed and allowed by ``CORE_PLUGINS``, and what is registered in this process.

        Args:
            environ: The environment variables.
            path: The folders that are searched for installed distributions; by default ``sys.path``.
            is_trusted: Whether plugins are imported in this process, and not asked in a separate one before.

        Raises:
            ConfigurationError: ``CORE_PLUGINS`` or ``CORE_PROBE_TIMEOUT`` is malformed.
        """
        registered, overriding = {}, {}
        for kind, registry in REGISTRIES.items():
            registered[kind], overriding[kind] = registry.specs(), registry.overriding
        return cls(survey(environ, path), registered, None if is_trusted else Learning(environ), overriding)

    def rows(self, kind: str | None = None) -> list[Row]:
        """Every backend found, with the state that is known so far; ordered by kind, name, distribution."""
        kinds = list(KINDS) if kind is None else [kind]
        rows = [row for row in self._rows if row.kind in kinds]
        rows += [_registered_row(spec) for each in kinds for spec in self._registered[each].values()]
        return sorted(rows, key=lambda row: (kinds.index(row.kind), row.name, row.distribution))

    def rows_of(self, distribution: str, module: str) -> list[Row]:
        """The installed backends of one plugin module."""
        return self._by_module[distribution, module]

    def names(self, kind: str) -> list[str]:
        """The names that can be selected, without the aliases."""
        installed = {row.name for row in self._rows if row.kind == kind and row.state == "installed"}
        return sorted(installed.union(self._registered[kind]))

    def find(self, kind: str, name: str, *, argument: str | None = None) -> list[BackendSpec]:
        """The backend called ``name``, or all backends that have it as an alias.

        Args:
            kind: A key of :data:`core.kinds.KINDS`.
            name: A name or an alias; in capitals too, if none is spelt so.
            argument: The argument or variable that messages show; by default ``kind``.

        Returns:
            At least one spec; several are ordered by priority, highest first, then by name.

        Raises:
            UnknownNameError: No backend has the name or alias.
            BackendError: The backend of that name is denied, incompatible, in conflict or broken.
        """
        subject = f"{argument or kind}={name!r}"
        self._looked_up.add((kind, name))
        self._learn(self._by_name[kind, name], refresh=True)
        spec = self._named(kind, name, subject)
        if spec is not None:
            return [spec]
        claimants: list[BackendSpec] = []
        if not self._by_name[kind, name]:
            claimants = [spec for spec in self.specs(kind) if name in spec.aliases]
        if claimants:
            return sorted(claimants, key=lambda spec: (-spec.priority, spec.name))
        if name != name.lower() and not self._by_name[kind, name]:
            with suppress(UnknownNameError):
                return self.find(kind, name.lower(), argument=argument)
        raise self._unusable(kind, name, subject) if self._by_name[kind, name] else self._unknown(kind, name, subject)

    def specs(self, kind: str) -> list[BackendSpec]:
        """All usable backends, ordered by name; activates every plugin that has one of that kind."""
        specs: list[BackendSpec] = []
        self._learn([row for row in self._rows if row.kind == kind])
        for name in self.names(kind):
            try:
                spec = self._named(kind, name, f"{kind} {name!r}")
            except BackendError as error:
                logger.warning("%s", shortened(str(error)))
            else:
                specs += [spec] if spec is not None else []
        return specs

    def spec(self, row: Row) -> BackendSpec | None:
        """The spec of an installed backend; ``None`` if it cannot be used, for the reason that the row then has."""
        if row.state != "installed":
            return None
        key = row.distribution, row.module
        if key not in self._activations:
            self._learn([row])
        if key not in self._activations:
            logger.debug("activating %s of %s", row.module, row.origin)
            self._activations[key] = activation = activate(row.module, self._declared(row))
            self._record(row, list(self._by_module[key]), activation)
        return self._activations[key].specs.get((row.kind, row.name))

    def failures(self, kind: str) -> list[Row]:
        """The backends of that kind found broken so far."""
        return [row for row in self._rows if row.kind == kind and row.state == "failed"]

    def origin(self, spec: BackendSpec) -> str:
        """The distribution and version of ``spec``; ``this process`` if it was registered or made in code."""
        row = self._row_of(spec)
        return THIS_PROCESS if row is None else row.origin

    def is_foreign(self, spec: BackendSpec) -> bool:
        """Whether a plugin other than core's own provides ``spec``: its code has not run in this process."""
        row = self._row_of(spec)
        return self._learning is not None and row is not None and not row.is_core

    def load(self, spec: BackendSpec) -> type[Any]:
        """The class that ``spec`` describes.

        The class of a plugin is imported only if a separate process has found that this does no harm.

        Raises:
            BackendError: The target cannot be imported, or is not a subclass of its kind's base class; or its import
                ends the process, hangs, or changes the process's state.
        """
        row = self._row_of(spec)
        if self._learning is None or row is None or row.is_core:
            return load(spec, self.origin(spec))
        verdict = self._learning.verdict(spec, row, refresh=(row.kind, row.name) in self._looked_up)
        if verdict.error:
            raise self._broken(spec, row, verdict)
        return load_watched(spec, row.origin)

    def device_count(self, spec: AcceleratorSpec) -> int:
        """The number of devices that a plugin's accelerator reports, asked in a separate process.

        Raises:
            BackendError: It cannot say, for the reason given.
        """
        row = self._row_of(spec)
        if self._learning is None or row is None:
            raise BackendError(f"{spec.kind} {spec.name!r} is of this process, which can ask it itself")
        verdict = self._learning.verdict(spec, row, with_count=True)
        if verdict.error or verdict.count is None:
            raise self._broken(spec, row, verdict)
        return verdict.count

    def complete(self, spec: Any) -> Any:
        """``spec`` with the values that could not be read in a separate process, such as objects in ``init_args``.

        Raises:
            BackendError: Its plugin, which is imported for them, does not return it here.
        """
        row = self._row_of(spec)
        if row is None or (row.kind, row.name) not in self._activations[row.distribution, row.module].not_plain:
            return spec
        here = activate_watched(row.module, self._declared(row))
        own = here.specs.get((row.kind, row.name))
        if own is None:
            fault = here.failures[row.kind, row.name]
            raise BackendError(f"{spec.kind} {spec.name!r} of {row.origin} is broken: {fault.reason}") from fault.cause
        return attrs.evolve(spec, target=own.target, init_args={**own.init_args, **spec.init_args})

    def served(self, spec: AcceleratorSpec) -> list[str]:
        """The further names that ``spec`` discovers now, without those that another backend owns.

        Raises:
            Exception: Whatever the spec's function raises.
        """
        if not spec.discover:
            return []
        owned = {row.name for row in self.rows(spec.kind)}
        if self.is_foreign(spec) and self._learning is not None:
            found = self._learning.served(spec)
        else:
            found = import_target(spec.discover)()
        return [name for name in found if name not in owned]

    def started(self, specs: Sequence[Any], environ: Mapping[str, str]) -> dict[str, bool | str]:
        """By name, whether a plugin's cluster environment has started this process, or why it could not say."""
        foreign = [spec for spec in specs if self.is_foreign(spec)]
        return self._learning.started(foreign, environ) if self._learning is not None and foreign else {}

    # -- installed and registered ------------------------------------------------------------------------------------

    def _index(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._by_module.setdefault((row.distribution, row.module), []).append(row)
            self._by_name[row.kind, row.name].append(row)

    def _named(self, kind: str, name: str, subject: str) -> BackendSpec | None:
        registered = self._registered[kind].get(name)
        rows = self._by_name[kind, name]
        if name in self._overriding.get(kind, ()) and not any(row.is_core for row in rows):
            return registered
        installed = next(filter(None, map(self.spec, rows)), None)
        if registered is None or installed is None:
            return registered or installed
        here, there = target_name(registered.target), target_name(installed.target)
        if here != there:
            row = self._row_of(installed)
            call = f"{KINDS[kind].registry}.register({name!r}, ..., override=True)"
            choose = "" if row is None or row.is_core else f", or choose it in place of the plugin's: {call}"
            raise BackendError(
                f"{subject}: {here} is registered in this process, but this is the name of {there} of "
                f"{self.origin(installed)}. Register it under another name{choose}."
            )
        return installed

    def _row_of(self, spec: BackendSpec) -> Row | None:
        """The installed backend that ``spec`` comes from; ``None`` if it was registered or made in code."""
        if self._registered[spec.kind].get(spec.name) is spec:
            return None
        for row in self._by_name[spec.kind, spec.name]:
            if self._returned(row) is not None:
                return row
        for row in self._rows:  # made from one under another name
            if row.kind == spec.kind and (own := self._returned(row)) is not None and own.target == spec.target:
                return row
        return None

    def _returned(self, row: Row) -> BackendSpec | None:
        activation = self._activations.get((row.distribution, row.module))
        return activation.specs.get((row.kind, row.name)) if activation and row.state == "installed" else None

    def _declared(self, row: Row) -> dict[str, set[str]]:
        """By kind, the names that the metadata declares for the module of ``row``."""
        declared: dict[str, set[str]] = {}
        for other in self._by_module[row.distribution, row.module]:
            declared.setdefault(other.kind, set()).add(other.name)
        return declared

    def _learn(self, rows: list[Row], *, refresh: bool = False) -> None:
        """Activate the plugin modules of these rows in a separate process, except core's own."""
        unknown: dict[tuple[str, str], Row] = {}
        for row in rows:
            key = row.distribution, row.module
            known = self._activations.get(key)
            if refresh and known is not None and known.is_old:  # a failure that an earlier run has found: ask again
                known = None
                failures = self._activations.pop(key).failures
                for other in self._by_module[key]:
                    if other.state == "failed" and (other.kind, other.name) in failures:
                        other.state, other.reason, other.detail = "installed", "", ""
            if known is None and not row.is_core and row.state == "installed":
                unknown[key] = row
        if self._learning is None or not unknown:
            return
        asked = [(row, self._declared(row)) for row in unknown.values()]
        for (row, _), activation in zip(asked, self._learning.activations(asked, refresh=refresh), strict=True):
            key = row.distribution, row.module
            self._activations[key] = activation
            self._record(row, list(self._by_module[key]), activation)

    def _record(self, row: Row, rows: list[Row], activation: Activation) -> None:
        """Write the result of a plugin module's activation into its rows."""
        for (kind, name), failure in activation.failures.items():
            failed = next((other for other in rows if (other.kind, other.name) == (kind, name)), None)
            if failed is None:  # returned, but not declared
                failed = Row(
                    kind=kind, name=name, distribution=row.distribution, version=row.version, module=row.module
                )
                self._rows.append(failed)
                self._index([failed])
            if failed.state == "installed":
                failed.state, failed.reason, failed.detail = "failed", failure.reason, failure.traceback
                self._causes[kind, name, row.distribution] = failure.cause
        for reason in sorted({failure.reason for failure in activation.failures.values()}):
            logger.warning("%s is broken: %s", row.origin, shortened(reason))
        for other in rows:
            spec = activation.specs.get((other.kind, other.name))
            if spec is not None:
                other.aliases = spec.aliases
            if activation.output:
                other.detail += f"printed during activation:\n{activation.output}"

    def _broken(self, spec: BackendSpec, row: Row, verdict: Verdict) -> BackendError:
        reason = verdict.error or verdict.count_error or "it does not report a number of devices"
        error = BackendError(f"{spec.kind} {spec.name!r} of {row.origin} is broken: {reason}")
        error.__cause__ = Elsewhere(verdict.detail) if verdict.detail else None
        return error

    # -- messages ----------------------------------------------------------------------------------------------------

    def _unusable(self, kind: str, name: str, subject: str) -> BackendError:
        rows = self._by_name[kind, name]
        error = BackendError(f"{subject}: {why_unusable(rows)}. Usable: {quoted(self.names(kind), near=name)}.")
        causes = (self._causes.get((row.kind, row.name, row.distribution)) for row in rows)
        error.__cause__ = next((cause for cause in causes if cause is not None), None)
        return error

    def _unknown(self, kind: str, name: str, subject: str) -> UnknownNameError:
        names = self.names(kind)
        aliases = sorted({alias for row in self.rows(kind) for alias in row.aliases or ()})
        valid = quoted(names, near=name) + (f", or an alias: {quoted(aliases, near=name)}" if aliases else "")
        broken = sorted({row.origin for row in self.failures(kind)})
        if broken:
            valid += f". Not searched for aliases, because broken: {quoted(broken, near=name)}"
        if provided := self._provided(kind, name):
            without = (
                f"Valid without it: {valid}." if len(names) <= LONGEST_LIST else f"Others: torch-hal list --kind {kind}"
            )
            return UnknownNameError(f"{subject}: {provided} {without}")
        text = f"{subject}: no installed or registered {kind} has this name. Valid: {valid}."
        for other in KINDS:
            if other != kind and name in self.names(other):
                return UnknownNameError(f"{subject}: {name!r} is of another kind. Pass {other}={name!r}.")
        base, _, index = name.partition(":")
        if kind == "accelerator" and index.isdigit():
            name, text = base, f"{text} Devices are chosen by devices=[{index}]."
        meant = remedies("names", [kind]).get(name.lower(), "")
        others = known_names(kind)
        if remedy := nearest(meant or name, [*names, *aliases], cutoff=1.0 if meant else 0.6):
            return UnknownNameError(text + remedy)
        if remedy := nearest(meant or name, others, cutoff=1.0 if meant else 0.6):
            return UnknownNameError(
                text + remedy + _installing(kind, [each for each in others if repr(each) in remedy])
            )
        return UnknownNameError(text + " If a plugin provides it, run: pip install torch-hal-PLUGIN")

    def _provided(self, kind: str, name: str) -> str:
        """The reason why no known distribution provides ``name`` here; empty if none is known."""
        absent: list[str] = []
        for distribution in providers(kind, name):
            rows = [row for row in self._rows if normalized(row.distribution) == distribution and row.kind == kind]
            if not rows:
                absent.append(distribution)
            elif unusable := next((row for row in rows if row.state != "installed"), None):
                return f"{unusable.origin}, which provides it, is {unusable.state}: {unusable.reason}."
        if not absent:
            return ""
        return f"the plugin is not installed. Run: {' or '.join(f'pip install {package(each)}' for each in absent)}."


def _registered_row(spec: BackendSpec) -> Row:
    row = Row(kind=spec.kind, name=spec.name, distribution=THIS_PROCESS, module=target_name(spec.target))
    row.aliases = spec.aliases
    return row


def _installing(kind: str, names: Sequence[str]) -> str:
    """How to install the plugins that provide ``names``."""
    lines = [f"{name!r}: pip install {' or '.join(map(package, providers(kind, name)))}" for name in names]
    return f" Not installed: {'; '.join(lines)}." if lines else ""
