"""Importing one plugin's hook module and calling its hooks, so that a broken plugin affects nothing else.

Exceptions and ``SystemExit`` are caught and recorded; printed output is kept, not shown; changes of environment
variables are undone. Only what concerns the whole process, such as ``KeyboardInterrupt``, is raised.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from types import ModuleType
from typing import Any

import attrs
import pluggy

from .. import hookspecs, specs
from ..errors import BackendError, harmless
from ..kinds import KINDS, Kind
from ..specs import BackendSpec
from .import_side_effects import ProcessState
from .loading import describe, load, target_name, trace

logger = logging.getLogger(__name__)


_MOST = 1000
"""Specs that a hook may return; a hook that never ends would fill the memory."""


@attrs.frozen
class Failure:
    """Why a plugin, or one of its backends, cannot be used."""

    reason: str
    """The reason, on one line."""
    cause: BaseException | None = attrs.field(default=None, eq=False)
    """The exception; ``None`` if core itself found the fault."""

    @property
    def traceback(self) -> str:
        """The traceback of :attr:`cause`, as Python prints it; empty without one."""
        if isinstance(self.cause, Elsewhere):
            return self.cause.traceback
        return "" if self.cause is None else trace(self.cause)


class Elsewhere(Exception):
    """An exception that a plugin raised in the process that queries plugins; the cause of an error in this process.

    Args:
        traceback: The traceback, as Python prints it there.
    """

    def __init__(self, traceback: str) -> None:
        super().__init__(f"in the process that queries plugins:\n{traceback}".rstrip())
        self.traceback = traceback


@attrs.frozen
class Activation:
    """The result of activating one plugin module. The keys are ``(kind, name)``."""

    specs: Mapping[tuple[str, str], Any]
    """The usable specs."""
    failures: Mapping[tuple[str, str], Failure]
    """Why each declared backend has no spec, and which backends were returned without being declared."""
    output: str
    """What the plugin printed."""
    not_plain: frozenset[tuple[str, str]] = frozenset()
    """The specs that were read in another process and have values which only exist in that process."""
    is_old: bool = False
    """Whether this is a failure that an earlier run has found."""


def activate(
    module: str, declared: Mapping[str, set[str]], caught: tuple[type[BaseException], ...] = (Exception, SystemExit)
) -> Activation:
    """Import ``module`` and call its hooks.

    Args:
        module: The module that the entry points name.
        declared: By kind, the names that its entry points declare.
        caught: What is recorded if the plugin raises it.
    """
    usable: dict[tuple[str, str], Any] = {}
    failures: dict[tuple[str, str], Failure] = {}
    found: dict[str, Any]
    with _Watch() as watch:
        callers = _import(module, watch, caught)
        for kind in KINDS.values():
            names = declared.get(kind.name, set())
            if isinstance(callers, Failure):
                found, faults = {}, dict.fromkeys(names, callers)
            elif not callers[kind.name].get_hookimpls():
                fault = Failure(f"{module} does not implement the hook {kind.hook}, which must return it")
                found, faults = {}, dict.fromkeys(names, fault)
            else:
                found, faults = _ask(kind, callers[kind.name], names, module, caught)
                if changes := watch.take_changes():
                    found, faults = {}, dict.fromkeys(names, Failure(f"its {kind.hook} changes os.environ: {changes}"))
            usable |= {(kind.name, name): spec for name, spec in found.items()}
            failures |= {(kind.name, name): fault for name, fault in faults.items()}
    if output := watch.printed.getvalue():
        printed = harmless(" ".join(output.split()), 200)
        logger.warning("plugin module %s printed during its activation: %s", module, printed)
    return Activation(usable, failures, output)


def _import(
    module: str, watch: _Watch, caught: tuple[type[BaseException], ...]
) -> dict[str, pluggy.HookCaller] | Failure:
    """The hooks of ``module`` by kind, or the failure."""
    try:
        imported = importlib.import_module(module)
    except caught as error:  # whatever a plugin raises is recorded
        watch.take_changes()
        return Failure(describe(error), error)
    if changes := watch.take_changes():
        _changes_by_import[module] = (imported, changes)
    changed_by, changes = _changes_by_import.get(module, (None, ""))
    if changed_by is imported:
        return Failure(f"its import changes os.environ: {changes}")
    try:
        return _hooks(imported)
    except caught as error:  # whatever a plugin raises is recorded
        return Failure(f"its hooks are not valid: {describe(error)}", error)


_changes_by_import: dict[str, tuple[ModuleType, str]] = {}
"""By module: a module runs once in a process, but each front end activates its plugin again and gets this failure."""


class _Watch:
    """Keeps printed output, and undoes changes of the environment variables."""

    def __init__(self) -> None:
        self.printed = io.StringIO()

    def __enter__(self) -> _Watch:
        self._environ = dict(os.environ)
        self._streams = sys.stdout, sys.stderr
        self._replacements = _Stream(self.printed, sys.stdout), _Stream(self.printed, sys.stderr)
        sys.stdout, sys.stderr = self._replacements
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.stdout, sys.stderr = self._streams
        for replacement in self._replacements:
            replacement.release()
        self.take_changes()

    def take_changes(self) -> str:
        """Undo the changes since the last call; returns the names of the variables."""
        before, now = self._environ, dict(os.environ)
        names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        for name in names:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]
        return ", ".join(names)


class _Stream:
    """Replaces a standard stream and keeps what is written; after :meth:`release` it passes everything on.

    A plugin may keep a reference to it, as ``logging.basicConfig`` does.
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
    manager.check_pending()  # a misspelt hook would be ignored silently
    return {kind.name: getattr(manager.hook, kind.hook) for kind in KINDS.values()}


def _ask(
    kind: Kind,
    caller: pluggy.HookCaller,
    declared: set[str],
    module: str,
    caught: tuple[type[BaseException], ...],
) -> tuple[dict[str, Any], dict[str, Failure]]:
    """The specs that are both declared and returned, and a failure for each name that is only one of the two."""
    expected = getattr(specs, kind.spec)
    try:
        answers = caller() or [None]  # pluggy leaves out None
        odd = [answer for answer in answers if isinstance(answer, str) or not isinstance(answer, Iterable)]
        returned = [] if odd else list(islice(chain.from_iterable(answers), _MOST + 1))
        odd += [spec for spec in returned if not isinstance(spec, expected)]
    except caught as error:  # whatever a plugin raises is recorded
        fault = Failure(f"its {kind.hook} raises {describe(error)}", error)
        return {}, dict.fromkeys(declared, fault)
    if len(returned) > _MOST:
        return {}, dict.fromkeys(declared, Failure(f"its {kind.hook} returns more than {_MOST} specs, or has no end"))
    if odd:
        given = "None" if odd[0] is None else f"an object of type {type(odd[0]).__name__}"
        fault = Failure(f"its {kind.hook} returns {given}. Return a list of {kind.spec} objects")
        return {}, dict.fromkeys(declared, fault)
    return _compare(kind, returned, declared, module)


def _compare(
    kind: Kind, returned: list[Any], declared: set[str], module: str
) -> tuple[dict[str, Any], dict[str, Failure]]:
    found: dict[str, Any] = {}
    faults: dict[str, Failure] = {}
    for spec in returned:
        if spec.name in found:
            faults[spec.name] = Failure(f"its {kind.hook} returns {spec.name!r} twice")
        elif spec.name not in declared:
            faults[spec.name] = Failure(
                f"its {kind.hook} returns {spec.name!r}, which its metadata does not declare. Add "
                f'{spec.name} = "{module}" under [project.entry-points."{kind.group}"]'
            )
        found[spec.name] = spec
    names = ", ".join(map(repr, sorted(found))) or "nothing"
    for name in declared - found.keys():
        faults[name] = Failure(f"its metadata declares {name!r}, but its {kind.hook} returns {names}")
    return {name: spec for name, spec in found.items() if name not in faults}, faults


_refused: dict[str, str] = {}
"""By target or module, why it was rejected: a module runs once in a process, and is rejected each time after that."""


_harmless: dict[str, ModuleType | None] = {}
"""By target, its module, which was imported without a change of this process: that need not be compared again."""


def load_watched(spec: BackendSpec, origin: str) -> type[Any]:
    """Like :func:`core.discovery.loading.load`, and rejects a target whose import changes this process.

    Raises:
        BackendError: See there; or the import changes the process, which is undone where it can be.
    """
    target = target_name(spec.target)
    module = target.partition(":")[0]
    if (known := _harmless.get(target)) is not None and known is sys.modules.get(module):
        return load(spec, origin)
    state = ProcessState()
    try:
        found = load(spec, origin)
    finally:
        _refuse(target, state, f"{spec.kind} {spec.name!r} of {origin}")
    _harmless[target] = sys.modules.get(module)
    return found


def activate_watched(module: str, declared: Mapping[str, set[str]]) -> Activation:
    """Like :func:`core.discovery.activation.activate`, and rejects a module whose import changes this process.

    Raises:
        BackendError: The import changes the process, which is undone where it can be.
    """
    state = ProcessState()
    try:
        return activate(module, declared)
    finally:
        _refuse(module, state, f"plugin module {module!r}")


def _refuse(target: str, state: ProcessState, subject: str) -> None:
    if changes := state.take_changes():
        _refused[target] = changes
    if target in _refused:
        raise BackendError(
            f"{subject} is refused, because its import changes this process: {_refused[target]}. Import what does this "
            "where it is used, or uninstall the plugin."
        )
