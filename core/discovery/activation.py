"""Importing one plugin's hook module and asking its hooks, so that whatever it does becomes a record.

Exceptions and ``SystemExit`` are caught; what the plugin prints is kept and not shown; what it changes in the
environment variables is undone. Only what is meant for the whole process, as ``KeyboardInterrupt``, passes through.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import attrs
import pluggy

from core import hookspecs, specs
from core.discovery.loading import describe, trace
from core.kinds import KINDS, Kind

__all__ = ["Activation", "Failure", "activate"]

logger = logging.getLogger(__name__)


@attrs.frozen
class Failure:
    """Why a plugin, or one of its backends, cannot be used."""

    reason: str
    """On one line."""
    cause: BaseException | None = attrs.field(default=None, eq=False)
    """What was raised; ``None`` where core itself found the fault."""

    @property
    def traceback(self) -> str:
        """Where it was raised, as Python prints it."""
        return "" if self.cause is None else trace(self.cause)


@attrs.frozen
class Activation:
    """What one plugin module handed over. The keys are ``(kind, name)``."""

    specs: Mapping[tuple[str, str], Any]
    """The usable specs."""
    failures: Mapping[tuple[str, str], Failure]
    """For each declared backend that is not among the specs, why; and each that was handed over undeclared."""
    output: str
    """What the plugin printed."""


def activate(module: str, declared: Mapping[str, set[str]]) -> Activation:
    """Import ``module`` and ask its hooks.

    Args:
        module: The module that the entry points name.
        declared: By kind, the names that the entry points give it.
    """
    handed: dict[tuple[str, str], Any] = {}
    failures: dict[tuple[str, str], Failure] = {}
    found: dict[str, Any]
    with _Watch() as watch:
        callers = _import(module, watch)
        for kind in KINDS.values():
            names = declared.get(kind.name, set())
            if isinstance(callers, Failure):
                found, faults = {}, dict.fromkeys(names, callers)
            else:
                found, faults = _ask(kind, callers[kind.name], names, module)
            if changes := watch.take_changes():
                found, faults = {}, dict.fromkeys(names, Failure(f"its {kind.hook} changes os.environ: {changes}"))
            handed |= {(kind.name, name): spec for name, spec in found.items()}
            failures |= {(kind.name, name): fault for name, fault in faults.items()}
    if watch.output:
        printed = " ".join(watch.output.split())[:200]
        logger.warning("plugin module %s prints while it is activated: %s", module, printed)
    return Activation(handed, failures, watch.output)


def _import(module: str, watch: _Watch) -> dict[str, pluggy.HookCaller] | Failure:
    """The hooks of ``module`` by kind, or why there are none."""
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a plugin raises is recorded
        watch.take_changes()
        return Failure(describe(error), error)
    if changes := watch.take_changes():
        _changes_by_import[module] = (imported, changes)
    changed_by, changes = _changes_by_import.get(module, (None, ""))
    if changed_by is imported:
        return Failure(f"its import changes os.environ: {changes}")
    try:
        return _hooks(imported)
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a plugin raises is recorded
        return Failure(f"its hooks are refused: {describe(error)}", error)


_changes_by_import: dict[str, tuple[ModuleType, str]] = {}
"""A module is executed once in a process, but every front end activates its plugin anew and is told the same."""


class _Watch:
    """Keeps what is printed, and finds and undoes changes of the environment variables."""

    def __init__(self) -> None:
        self._printed = io.StringIO()

    def __enter__(self) -> _Watch:
        self._environ = dict(os.environ)
        self._streams = sys.stdout, sys.stderr
        self._replacements = _Stream(self._printed, sys.stdout), _Stream(self._printed, sys.stderr)
        sys.stdout, sys.stderr = self._replacements
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.stdout, sys.stderr = self._streams
        for replacement in self._replacements:
            replacement.release()
        self.take_changes()

    @property
    def output(self) -> str:
        return self._printed.getvalue()

    def take_changes(self) -> str:
        """Undo what was changed since the last call, and name it."""
        before, now = self._environ, dict(os.environ)
        names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        for name in names:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]
        return ", ".join(names)


class _Stream:
    """Stands in for a standard stream: what is written is kept; once released it is the stream again.

    A plugin may hold on to it, as ``logging.basicConfig`` does.
    """

    def __init__(self, keep: io.StringIO, stream: Any) -> None:
        self._target: Any = keep
        self._stream = stream

    def release(self) -> None:
        self._target = self._stream

    def write(self, text: str) -> Any:
        return self._target.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self._target.writelines(lines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _hooks(module: ModuleType) -> dict[str, pluggy.HookCaller]:
    """The hooks by kind, implemented by ``module`` alone."""
    manager = pluggy.PluginManager("core")
    manager.add_hookspecs(hookspecs)
    manager.register(module)
    manager.check_pending()  # a misspelt hook would hand over nothing and say nothing
    return {kind.name: getattr(manager.hook, kind.hook) for kind in KINDS.values()}


def _ask(
    kind: Kind, caller: pluggy.HookCaller, declared: set[str], module: str
) -> tuple[dict[str, Any], dict[str, Failure]]:
    """The specs of one kind that are both declared and handed over; a failure for each name that is only one of it."""
    if not caller.get_hookimpls():
        fault = Failure(f"{module} does not implement the hook {kind.hook}, which would hand it over")
        return {}, dict.fromkeys(declared, fault)
    expected = getattr(specs, kind.spec)
    try:
        answers = caller() or [None]  # pluggy leaves out None
        odd = [answer for answer in answers if isinstance(answer, str) or not isinstance(answer, Iterable)]
        handed = [] if odd else [spec for answer in answers for spec in answer]
        odd += [spec for spec in handed if not isinstance(spec, expected)]
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a plugin raises is recorded
        fault = Failure(f"its {kind.hook} raises {describe(error)}", error)
        return {}, dict.fromkeys(declared, fault)
    if odd:
        given = "None" if odd[0] is None else f"an object of type {type(odd[0]).__name__}"
        fault = Failure(f"its {kind.hook} hands over {given}. Valid: a list of {kind.spec} objects")
        return {}, dict.fromkeys(declared, fault)
    return _compare(kind, handed, declared, module)


def _compare(
    kind: Kind, handed: list[Any], declared: set[str], module: str
) -> tuple[dict[str, Any], dict[str, Failure]]:
    found: dict[str, Any] = {}
    faults: dict[str, Failure] = {}
    for spec in handed:
        if spec.name in found:
            faults[spec.name] = Failure(f"its {kind.hook} hands over {spec.name!r} twice")
        elif spec.name not in declared:
            faults[spec.name] = Failure(
                f"its {kind.hook} hands over {spec.name!r}, which its metadata does not declare. Valid: "
                f'{spec.name} = "{module}" under [project.entry-points."{kind.group}"]'
            )
        found[spec.name] = spec
    names = ", ".join(repr(name) for name in sorted(found)) or "nothing"
    for name in declared - found.keys():
        faults[name] = Failure(f"its metadata declares {name!r}, but its {kind.hook} hands over {names}")
    return {name: spec for name, spec in found.items() if name not in faults}, faults
