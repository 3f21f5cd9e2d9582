"""Querying plugins and hardware in a separate process, so that a hang or a segmentation fault is only an answer.

The process answers one job after another. If it dies, the job that it died of is known, and a new process goes on with
the next one: the number of processes is one more than the number of deaths, however many backends there are.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ..errors import LaunchError
from ..utilities.child_process import ChildProcess, describe_end
from .loading import describe
from .scan import Row

if TYPE_CHECKING:
    from ..specs import AcceleratorSpec

Job = dict[str, Any]
"""What the process does: see :mod:`core.discovery.worker`."""
Answer = dict[str, Any]

TIMED_OUT = "timed out after"
"""How the reason begins of what has not answered in time."""
_START = 30.0
"""Seconds that a process may take before its first job, on a busy machine."""
_IMPORT_TORCH = 120.0
"""Seconds that ``import torch`` may take."""
_PARALLEL = 8
"""Processes that run at once at most."""
_TORCH = -1
"""The number of the job that imports torch."""
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_CODE = "from torch_hal.discovery.worker import main\nmain(directory, task)\n"


@attrs.frozen
class DetectResult:
    """The answer of an accelerator's ``detect`` function."""

    count: int | None
    """The number of devices; ``None`` if it could not be found out."""
    error: str | None
    """Why it could not be found out."""


def detect(
    specs: Iterable[AcceleratorSpec], *, timeout: float = 5.0, environ: Mapping[str, str] | None = None
) -> dict[str, DetectResult]:
    """Call the ``detect`` functions of accelerators, all at once in one process.

    Only if that process dies, those without an answer are called again, one after another in a few processes.

    Args:
        specs: Those without ``detect`` are left out.
        timeout: Seconds for all functions together, and for each one that is called again.
        environ: The environment variables of the process; this one's by default.

    Returns:
        The answers by the accelerators' names.
    """
    asked = {number: spec for number, spec in enumerate(specs) if spec.detect}
    if not asked:
        return {}
    jobs: list[Job] = [{"id": number, "do": "detect", "detect": spec.detect} for number, spec in asked.items()]
    try:
        answers: dict[int, Answer] = {}
        with _Worker({"at_once": True}, jobs, timeout, environ) as process:
            pending = process.finish(answers)
        groups = [pending[first::_PARALLEL] for first in range(min(_PARALLEL, len(pending)))]
        answers |= _answers({}, groups, timeout, environ)
    except LaunchError as error:
        answers = {number: {"error": str(error)} for number in asked}
    return {
        spec.name: DetectResult(answers[number].get("count"), answers[number].get("error"))
        for number, spec in asked.items()
    }


def ask(jobs: list[Job], timeout: float, *, imports_torch: bool) -> dict[int, Answer]:
    """The answers to jobs by their ``id``, one of which is ``error`` and ``detail`` where a job ended its process.

    Args:
        jobs: See :mod:`core.discovery.worker`.
        timeout: Seconds for each.
        imports_torch: Whether the process imports torch before the first.

    Raises:
        LaunchError: No process can be started, or torch cannot be imported in it.
    """
    try:
        return _answers({"imports_torch": imports_torch}, [jobs], timeout, None)
    except _TorchFails as failure:
        raise LaunchError(f"import torch fails in the process that queries plugins: {failure}") from None


def probe(
    rows: list[Row], environ: Mapping[str, str], *, hardware: bool, timeout: float, kinds: Sequence[str] = ()
) -> list[str]:
    """Find out the state of every installed backend and write it into its row.

    Args:
        rows: The rows of :func:`core.discovery.selection.survey`. Rows are added for backends that a plugin provides
            without declaring them.
        environ: The environment variables of the processes.
        hardware: Import each target and query the hardware; otherwise import only the plugins' hook modules.
        timeout: Seconds for each hook module and each backend.
        kinds: Only these kinds; all by default.

    Returns:
        Warnings that do not belong to a single backend.

    Raises:
        LaunchError: No process can be started.
    """
    probing = _Probing(rows, timeout, kinds)
    if not hardware:
        probing.ask(environ)
        return []
    try:
        probing.ask(environ, hardware=True)
    except _TorchFails as failure:
        return [_without_autoload(probing, environ, str(failure))]
    return []


def _without_autoload(probing: _Probing, environ: Mapping[str, str], reason: str) -> str:
    """Probe without torch's autoload of vendors' packages; returns the warning about it."""
    try:
        probing.ask({**environ, _AUTOLOAD: "0"}, hardware=True)
    except _TorchFails:
        probing.ask(environ)
        for row in probing.asked:
            if row.state == "installed":
                row.state, row.reason = "failed", f"import torch fails: {reason}"
        return f"import torch fails, so that no backend can be used: {reason}"
    return (
        f"import torch fails: {reason}. It works with {_AUTOLOAD}=0, so the cause is one of the packages that torch "
        f"loads through the entry-point group torch.backends: {_autoloaded()}. Repair or uninstall it, or set "
        f"{_AUTOLOAD}=0 in the environment. The states shown here were found with this setting."
    )


def _autoloaded() -> str:
    import importlib_metadata

    found = []
    for distribution in importlib_metadata.distributions():
        try:
            if distribution.entry_points.select(group="torch.backends"):
                found.append(f"{distribution.name} {distribution.version}")
        except Exception as error:  # noqa: BLE001  torch fails to read it, too, and that is the answer
            found.append(f"{distribution} ({describe(error)})")
    return ", ".join(sorted(found)) or "none was found"


class _TorchFails(Exception):
    """``import torch`` fails in the process."""


class _Probing:
    """Asks about rows, and writes the answers into them."""

    def __init__(self, rows: list[Row], timeout: float, kinds: Sequence[str]) -> None:
        self.asked = [row for row in rows if row.state == "installed" and (not kinds or row.kind in kinds)]
        self._rows = rows
        self._timeout = timeout
        self._scanned = [row.to_dict() for row in rows]
        self._by_module: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            self._by_module.setdefault((row.distribution, row.module), []).append(row)

    def ask(self, environ: Mapping[str, str], *, hardware: bool = False) -> None:
        """Activate each plugin module and, with ``hardware``, import torch before and query each backend after.

        Raises:
            _TorchFails: ``import torch`` fails.
        """
        jobs: list[Job] = [
            {"do": "activate", "distribution": distribution, "module": module}
            for distribution, module in dict.fromkeys((row.distribution, row.module) for row in self.asked)
        ]
        if hardware:
            identity = ("distribution", "module", "kind", "name")
            jobs += [{"do": "backend", **{key: getattr(row, key) for key in identity}} for row in self.asked]
        jobs = [{**job, "id": number} for number, job in enumerate(jobs)]
        # The process gets what was scanned here: it need not scan again, and its answers are about the same rows.
        task = {"rows": self._scanned, "imports_torch": hardware}
        answers = _answers(task, [jobs] if jobs else [], self._timeout, environ, skip=_is_about)
        for job in jobs:
            if job["id"] in answers:
                self._record(job, answers[job["id"]])

    def _record(self, job: Job, answer: Answer) -> None:
        if "error" in answer:
            for row in self._by_module[job["distribution"], job["module"]]:
                if row.state == "installed" and _is_about(job, row.to_dict()):
                    row.state, row.reason, row.detail = "failed", answer["error"], answer["detail"]
            return
        for facts in answer["rows"]:
            of_module = self._by_module.setdefault((facts["distribution"], facts["module"]), [])
            found = [row for row in of_module if (row.kind, row.name) == (facts["kind"], facts["name"])]
            if found:
                if job["do"] == "activate" or found[0].state != "failed":  # a new process has not seen what failed
                    found[0].update(facts)
            else:  # provided, but not declared
                of_module.append(Row.from_dict(facts))
                self._rows.append(of_module[-1])


def _is_about(job: Job, facts: Mapping[str, Any]) -> bool:
    """Whether ``job`` is about the backend with these facts; an activation is about every backend of its module."""
    keys = ("distribution", "module", "kind", "name") if job["do"] == "backend" else ("distribution", "module")
    return all(job[key] == facts.get(key) for key in keys)


def _answers(
    task: Mapping[str, Any],
    groups: list[list[Job]],
    timeout: float,
    environ: Mapping[str, str] | None,
    skip: Callable[[Job, Job], bool] = lambda dead, job: False,
) -> dict[int, Answer]:
    """The answers by job. Each group has a process; where one dies of a job, a new one goes on after that job.

    Args:
        task: What the processes need besides jobs.
        groups: Jobs that are done one after another.
        timeout: Seconds for a job.
        environ: The environment variables.
        skip: Whether a job is pointless after another has killed its process.

    Raises:
        _TorchFails: The task says to import torch, and that fails.
    """
    answers: dict[int, Answer] = {}
    while groups:
        with contextlib.ExitStack() as stack:
            processes = [stack.enter_context(_Worker(task, jobs, timeout, environ)) for jobs in groups]
            unanswered = [process.finish(answers) for process in processes]
            deaths = [process.death(timeout) for process in processes]
        groups = []
        for jobs, death in zip(unanswered, deaths, strict=True):
            for dead in jobs[:1]:
                answers[dead["id"]] = death
                groups += [left] if (left := [job for job in jobs[1:] if not skip(dead, job)]) else []
    return answers


_FROM_OUTSIDE = (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM))
"""What the system, a cluster or a user ends processes with: that says nothing about the plugin, and is not kept."""


class _Worker(ChildProcess):
    """A process that does jobs.

    Raises:
        LaunchError: It cannot be started.
    """

    def __init__(
        self, task: Mapping[str, Any], jobs: list[Job], timeout: float, environ: Mapping[str, str] | None
    ) -> None:
        self._task, self._jobs, self._timeout = task, jobs, timeout
        try:
            super().__init__(
                _CODE, {**task, "jobs": jobs, "timeout": timeout, "torch_timeout": _IMPORT_TORCH}, environ=environ
            )
        except OSError as error:
            raise LaunchError(f"the process that queries plugins cannot be started: {error}") from error

    def finish(self, answers: dict[int, Answer]) -> list[Job]:
        """Wait for the process and add its answers by job; returns the jobs without an answer, in their order.

        Raises:
            _TorchFails: The task says to import torch, and that fails.
        """
        self.wait(_START + _IMPORT_TORCH + self._timeout * len(self._jobs))
        found: dict[int, Answer] = {answer.pop("job"): answer for answer in self.lines("answers")}
        if self._task.get("imports_torch"):
            failure = found.pop(_TORCH) if _TORCH in found else self.death(_IMPORT_TORCH)
            if failure:
                raise _TorchFails(failure["error"])
        answers |= found
        return [job for job in self._jobs if job["id"] not in found]

    def death(self, timeout: float) -> Answer:
        """The end of the process, as the answer to the job that caused it."""
        log = self.read("log")
        timed_out = self.timed_out or log.startswith("Timeout")
        error = f"{TIMED_OUT} {timeout:g} s" if timed_out else describe_end(self.exit_code)
        answer: Answer = {"error": error, "detail": f"{log}{self.output[-2000:]}"}
        if not timed_out and -self.exit_code in _FROM_OUTSIDE:
            answer["is_harmful"] = False
        return answer
