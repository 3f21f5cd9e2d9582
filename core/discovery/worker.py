"""What runs in the process that :mod:`core.discovery.probe` starts: it asks plugins, and may hang or die of it.

Answers go line by line into a file, so that nothing a plugin prints can be taken for one, and none is lost with the
process. Which job it died of is seen from the outside: it has no answer.
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

from core.discovery.loading import describe, import_target, load_target, trace
from core.errors import CoreError

if TYPE_CHECKING:
    from core.discovery.registry import Registry
    from core.discovery.scan import Row

__all__ = ["main"]


def main(directory: str, task: Mapping[str, Any]) -> NoReturn:
    """Do the task and leave, whatever threads a plugin may have left running."""
    with (
        open(os.path.join(directory, "answers"), "w", encoding="utf-8") as answers,
        open(os.path.join(directory, "log"), "w", encoding="utf-8") as log,
    ):
        faulthandler.enable(log)
        {"detect": _detect, "probe": _probe}[task["mode"]](task, _Answers(answers), log)
    os._exit(0)


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


# -- many quick questions at once -------------------------------------------------------------------------------------


def _detect(task: Mapping[str, Any], answers: _Answers, log: TextIO) -> None:
    limit = task["timeout"]
    # A function that hangs without letting go of the interpreter's lock is not seen by any thread of ours.
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
        raise TypeError(f"{function} returns an object of type {type(answer).__name__}. Valid: a number of devices")
    return operator.index(answer)


def _failure(error: BaseException) -> dict[str, str]:
    text = str(error) if isinstance(error, CoreError) else describe(error)
    return {"error": text, "detail": trace(error)}


# -- everything about each backend, one after another -----------------------------------------------------------------


def _probe(task: Mapping[str, Any], answers: _Answers, log: TextIO) -> None:
    from core.discovery.registry import Registry

    logging.getLogger("core.discovery").setLevel(logging.ERROR)  # what it warns of is what the answers say
    registry = Registry.read(os.environ)
    do: dict[str, Callable[[Registry, Mapping[str, Any]], dict[str, Any]]] = {
        "torch": _import_torch,
        "activate": _activate,
        "backend": _backend,
    }
    for job in task["jobs"]:
        os.ftruncate(1, os.lseek(1, 0, os.SEEK_SET))  # what earlier jobs printed explains nothing about this one
        faulthandler.dump_traceback_later(job["timeout"], exit=True, file=log)
        answer = do[job["do"]](registry, job)
        answers.give(job["id"], **answer)
        if job["do"] == "torch" and answer:
            return


def _import_torch(registry: Registry, job: Mapping[str, Any]) -> dict[str, Any]:
    del registry, job
    try:
        import torch  # noqa: F401
    except (Exception, SystemExit) as error:  # noqa: BLE001  what a vendor's package does to torch is the answer
        return _failure(error)
    return {}


def _activate(registry: Registry, job: Mapping[str, Any]) -> dict[str, Any]:
    rows = _rows(registry, job)
    for row in rows:
        registry.spec(row)
    return {"rows": [row.to_dict() for row in _rows(registry, job)]}


def _rows(registry: Registry, job: Mapping[str, Any]) -> list[Row]:
    return [row for row in registry.rows() if (row.distribution, row.module) == (job["distribution"], job["module"])]


def _backend(registry: Registry, job: Mapping[str, Any]) -> dict[str, Any]:
    row = next(row for row in _rows(registry, job) if (row.kind, row.name) == (job["kind"], job["name"]))
    try:
        spec = registry.spec(row)
        if spec is not None:
            _ASK.get(row.kind, _ask_nothing)(registry, spec, row)
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a plugin raises is the answer
        failure = _failure(error)
        row.state, row.reason, row.detail = "failed", failure["error"], row.detail + failure["detail"]
    return {"rows": [row.to_dict()]}


def _ask_nothing(registry: Registry, spec: Any, row: Row) -> None:
    del registry
    load_target(spec)
    row.state = "available"


def _ask_accelerator(registry: Registry, spec: Any, row: Row) -> None:
    count = _counted(spec.detect) if spec.detect else None
    accelerator = load_target(spec)
    if spec.serves:
        names = registry.served(spec)
        row.reason = f"serves {', '.join(names)}" if names else "serves no device here"
        count = sum(_count(accelerator(name=name, **spec.init_args)) for name in names)
    elif count is None:
        count = _count(accelerator(**spec.init_args))
    row.devices = count
    row.state = "available" if count else "unavailable"
    row.reason = row.reason or ("" if count else "no device is there")


def _count(accelerator: Any) -> int:
    return operator.index(accelerator.auto_device_count()) if accelerator.is_available() else 0


def _ask_environment(registry: Registry, spec: Any, row: Row) -> None:
    del registry
    environment = load_target(spec)
    started = (import_target(spec.detect) if spec.detect else environment.detect)(dict(os.environ))
    row.state = "available" if started else "unavailable"
    row.reason = "this process was started by it" if started else "this process was not started by it"


_ASK: dict[str, Callable[[Registry, Any, Row], None]] = {
    "accelerator": _ask_accelerator,
    "cluster_environment": _ask_environment,
}
