"""Runs in the process that :mod:`core.discovery.probe` starts: queries plugins, which may hang or kill the process.

Answers go line by line into a file, so that output of a plugin is never taken for an answer and no answer is lost with
the process. The job that the process died of is the first without an answer.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import operator
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from ..errors import BackendError, CoreError
from ..kinds import KINDS
from ..utilities.user_modules import import_all, read_imports
from .loading import describe, import_target, load_target, trace
from .metadata import check_needs, is_there

if TYPE_CHECKING:
    from .registry import Registry
    from .scan import Row

_TORCH = -1
_WITHOUT_TORCH, _WITH_TORCH = 4, 32
"""GiB of memory that a plugin's light modules, and its classes with torch, may allocate."""


def main(directory: str, task: Mapping[str, Any]) -> NoReturn:
    """Do the task and exit, whatever threads a plugin may have left running."""
    with (
        open(os.path.join(directory, "answers"), "w", encoding="utf-8") as answers,
        open(os.path.join(directory, "log"), "w", encoding="utf-8") as log,
    ):
        faulthandler.enable(log)
        _limit_memory(_WITH_TORCH if task.get("imports_torch") else _WITHOUT_TORCH)
        (_at_once if task.get("at_once") else _one_after_another)(task, _Answers(answers), log)
    os._exit(0)


def _limit_memory(gibibytes: int) -> None:
    """Let allocating more raise MemoryError, so that a plugin cannot exhaust the machine."""
    try:
        import resource
    except ImportError:  # not on every system
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = gibibytes << 30
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most < 0 else min(limit, most), most))


class _Answers:
    """Writes each job's first answer."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._answered: set[int] = set()

    def give(self, job: int, **answer: Any) -> None:
        with self._lock:
            if job not in self._answered:
                self._answered.add(job)
                self._file.write(json.dumps({"job": job, **answer}) + "\n")
                self._file.flush()


# -- many quick detect functions at once ------------------------------------------------------------------------------


def _at_once(task: Mapping[str, Any], answers: _Answers, log: TextIO) -> None:
    limit = task["timeout"]
    # If a function hangs while it holds the interpreter's lock, no thread of this function can notice it.
    faulthandler.dump_traceback_later(limit + 1.0, exit=True, file=log)
    deadline = time.monotonic() + limit
    threads = {
        job["id"]: threading.Thread(target=_detect_one, args=(job["id"], job["detect"], answers), daemon=True)
        for job in task["jobs"]
    }
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    for job in threads:
        answers.give(job, error=f"timed out after {limit:g} s")


def _detect_one(job: int, function: str, answers: _Answers) -> None:
    try:
        answers.give(job, count=_counted(function))
    except BaseException as error:  # noqa: BLE001  this thread ends here, and the error is the answer
        answers.give(job, **_failure(error))


def _counted(function: str) -> int:
    answer = import_target(function)()
    if isinstance(answer, bool) or not hasattr(answer, "__index__") or operator.index(answer) < 0:
        raise TypeError(
            f"{function} returned {answer!r:.100} of type {type(answer).__name__}; it must return the number of devices"
        )
    return operator.index(answer)


def _failure(error: BaseException) -> dict[str, str]:
    text = str(error) if isinstance(error, CoreError) else describe(error)
    return {"error": text, "detail": trace(error)}


# -- jobs one after another -------------------------------------------------------------------------------------------


def _one_after_another(task: Mapping[str, Any], answers: _Answers, log: TextIO) -> None:
    if task.get("imports_torch"):
        faulthandler.dump_traceback_later(task["torch_timeout"], exit=True, file=log)
        failure = _import_torch()
        answers.give(_TORCH, **failure)
        if failure:
            return
    jobs = _Jobs(task)
    for job in task["jobs"]:
        os.ftruncate(1, os.lseek(1, 0, os.SEEK_SET))  # output of earlier jobs says nothing about this one
        faulthandler.dump_traceback_later(task["timeout"], exit=True, file=log)
        answers.give(job["id"], **jobs.do(job))


def _import_torch() -> dict[str, Any]:
    try:
        import torch  # noqa: F401

        import_all(read_imports(None, os.environ))
    except (Exception, SystemExit) as error:  # noqa: BLE001  what a vendor's package does to torch is the answer
        return _failure(error)
    return {}


class _Jobs:
    """Does jobs; what it needs for the first of a kind is kept for the others."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self._rows = task.get("rows", [])
        self._registry: Registry | None = None

    def do(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a job."""
        do: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "detect": lambda job: {"count": _counted(job["detect"])},
            "activate": self._activate,
            "learn": _learn,
            "vet": _vet,
            "discover": lambda job: {"names": list(map(str, import_target(job["discover"])()))},
            "started": _started,
            "backend": self._backend,
        }
        try:
            return do[job["do"]](job)
        except BaseException as error:  # noqa: BLE001  this process is made for whatever a plugin raises
            return _failure(error)

    @property
    def registry(self) -> Registry:
        """The registry of what was scanned by the process that started this one."""
        if self._registry is None:
            from .registry import Registry
            from .scan import Row
            from .selection import Survey

            logging.getLogger("torch_hal.discovery").setLevel(logging.ERROR)  # its warnings are what the answers say
            self._registry = Registry(Survey([Row.from_dict(facts) for facts in self._rows], "", []), {})
        return self._registry

    def _activate(self, job: Mapping[str, Any]) -> dict[str, Any]:
        from .import_side_effects import ProcessState
        from .plugin_answers import changed_by

        module = job["distribution"], job["module"]
        state = ProcessState()
        for row in list(self.registry.rows_of(*module)):
            self.registry.spec(row)
        if changes := state.take_changes():
            for row in self.registry.rows_of(*module):
                row.state, row.reason = "failed", changed_by(changes)
        return {"rows": [row.to_dict() for row in self.registry.rows_of(*module)]}

    def _backend(self, job: Mapping[str, Any]) -> dict[str, Any]:
        of_module = self.registry.rows_of(job["distribution"], job["module"])
        row = next(row for row in of_module if (row.kind, row.name) == (job["kind"], job["name"]))
        before = time.monotonic()
        try:
            spec = self.registry.spec(row)
            if spec is not None and not row.is_core and (missing := _missing(row)):
                row.state, row.reason = "unavailable", missing
            elif spec is not None:
                if not row.is_core:
                    self._load_unchanged(spec)
                _ASK.get(row.kind, _ask_nothing)(self.registry, spec, row)
        except BaseException as error:  # noqa: BLE001  whatever a plugin raises is the answer
            failure = _failure(error)
            if engine := _missing_engine(error, row):
                row.state, row.reason = "unavailable", f"needs {engine}, which is not installed"
            else:
                row.state, row.reason, row.detail = "failed", failure["error"], row.detail + failure["detail"]
        row.seconds = round(time.monotonic() - before, 3)
        return {"rows": [row.to_dict()]}

    def _load_unchanged(self, spec: Any) -> None:
        from .import_side_effects import ProcessState
        from .plugin_answers import changed_by

        for kind in KINDS.values():
            import_target(kind.base)  # what core itself changes is not the plugin's change
        state = ProcessState()
        try:
            load_target(spec)
        finally:
            if changes := state.take_changes():
                raise BackendError(changed_by(changes))


def _missing(row: Row) -> str:
    """The requirements of the row's distribution that are not installed; empty if all are."""
    try:
        check_needs(f"{KINDS[row.kind].title} {row.name!r}", row.distribution)
    except BackendError as error:
        return str(error)
    return ""


def _missing_engine(error: BaseException, row: Row) -> str:
    """The package that the row's class imports and that is not installed, if that is why ``error`` was raised.

    Not every engine can be a requirement in the metadata: some are installed from other places than the package index.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__
    package = (cause.name or "").partition(".")[0] if cause is not None else ""
    own = row.module.partition(".")[0]
    return "" if package in (own, "core", "torch_hal") or is_there(package) else package


def _ask_nothing(registry: Registry, spec: Any, row: Row) -> None:
    load_target(spec)
    row.state = "available"


def _ask_accelerator(registry: Registry, spec: Any, row: Row) -> None:
    count = _counted(spec.detect) if spec.detect else None
    accelerator = load_target(spec)
    if spec.discover:
        names = registry.served(spec)
        row.reason = f"provides {', '.join(names)}" if names else "provides no device type here"
        count = sum(_count(accelerator(name=name, **spec.init_args)) for name in names)
    elif count is None:
        count = _count(accelerator(**spec.init_args))
    row.devices = count
    row.state = "available" if count else "unavailable"
    row.reason = row.reason or ("" if count else "no device found")


def _count(accelerator: Any) -> int:
    return operator.index(accelerator.auto_device_count()) if accelerator.is_available() else 0


def _ask_environment(registry: Registry, spec: Any, row: Row) -> None:
    environment = load_target(spec)
    started = (import_target(spec.detect) if spec.detect else environment.detect)(dict(os.environ))
    row.state = "available" if started else "unavailable"
    row.reason = "it started this process" if started else "it did not start this process"


# What detection does not need is imported when it is used, so that detection is quick.


def _learn(job: Mapping[str, Any]) -> dict[str, Any]:
    from .plugin_answers import learn

    return learn(job)


def _vet(job: Mapping[str, Any]) -> dict[str, Any]:
    from .plugin_answers import vet

    return vet(job)


def _started(job: Mapping[str, Any]) -> dict[str, Any]:
    from .plugin_answers import decoded

    spec = decoded(job["spec"])
    function = import_target(spec.detect) if spec.detect else load_target(spec).detect
    return {"started": bool(function(job["environ"]))}


_ASK: dict[str, Callable[[Registry, Any, Row], None]] = {
    "accelerator": _ask_accelerator,
    "cluster_environment": _ask_environment,
}
