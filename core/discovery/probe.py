"""Asking hardware and plugins in a process of their own, so that a hang or a segmentation fault is only an answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from core.discovery.loading import describe
from core.discovery.process import START, Answer, Job, WorkerProcess
from core.discovery.scan import Row
from core.errors import LaunchError

if TYPE_CHECKING:
    from core.specs import AcceleratorSpec

__all__ = ["DetectResult", "detect", "probe"]

_IMPORT_TORCH = 120.0
"""Seconds that ``import torch`` may need."""
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


@attrs.frozen
class DetectResult:
    """What an accelerator's ``detect`` answered."""

    count: int | None
    """How many devices are there; ``None`` where it could not be found out."""
    error: str | None
    """Why not."""


def detect(
    specs: Iterable[AcceleratorSpec], *, timeout: float = 5.0, environ: Mapping[str, str] | None = None
) -> dict[str, DetectResult]:
    """Ask the ``detect`` functions how many devices are there, all at once in one process.

    Only where that process dies is each one without an answer asked again, alone.

    Args:
        specs: Those without ``detect`` are left out.
        timeout: Seconds that all of them together have.
        environ: The environment variables of the process; this one's where none are given.

    Returns:
        By the accelerator's name.
    """
    asked = {number: spec for number, spec in enumerate(specs) if spec.detect}
    jobs: list[Job] = [{"id": number, "detect": spec.detect} for number, spec in asked.items()]
    if not jobs:
        return {}
    try:
        answers = _answers([jobs], timeout, environ)
        answers |= _answers([[job] for job in jobs if job["id"] not in answers], timeout, environ)
    except LaunchError as error:
        answers = {number: {"error": str(error)} for number in asked}
    return {
        spec.name: DetectResult(answers[number].get("count"), answers[number].get("error"))
        for number, spec in asked.items()
    }


def _answers(groups: Iterable[list[Job]], timeout: float, environ: Mapping[str, str] | None) -> dict[int, Answer]:
    """Answers by job, each group in a process of its own; one that dies of its only job has that as its answer."""
    answers: dict[int, Answer] = {}
    with contextlib.ExitStack() as stack:
        processes = [(jobs, stack.enter_context(WorkerProcess("detect", jobs, timeout, environ))) for jobs in groups]
        for jobs, process in processes:
            answers |= process.finish(START + timeout)
            if len(jobs) == 1:
                answers.setdefault(jobs[0]["id"], process.death)
    return answers


def probe(
    rows: list[Row], environ: Mapping[str, str], *, hardware: bool, timeout: float, kinds: Sequence[str] = ()
) -> list[str]:
    """Find out the state of every installed backend, and put it into its row.

    Args:
        rows: As :func:`core.discovery.states.survey` gave them; rows of what a plugin hands over undeclared are added.
        environ: The environment variables of the processes that ask.
        hardware: Import each target and ask the hardware; if not, only plugins' hook modules are imported.
        timeout: Seconds for each plugin's hook module and each backend.
        kinds: Only these kinds; all where none is given.

    Returns:
        Warnings that are about no single backend.

    Raises:
        LaunchError: No process can be started.
    """
    asked = [row for row in rows if row.state == "installed" and (not kinds or row.kind in kinds)]
    activations: list[Job] = [
        {"do": "activate", "distribution": distribution, "module": module}
        for distribution, module in dict.fromkeys((row.distribution, row.module) for row in asked)
    ]
    if not hardware:
        _ask(rows, activations, timeout, environ)
        return []
    identity = ("distribution", "module", "kind", "name")
    backends: list[Job] = [{"do": "backend", **{key: getattr(row, key) for key in identity}} for row in asked]
    try:
        _ask(rows, activations + backends, timeout, environ, imports_torch=True)
    except _TorchFails as failure:
        return [_ask_without_autoload(rows, activations, backends, timeout, environ, str(failure))]
    return []


def _ask_without_autoload(
    rows: list[Row], activations: list[Job], backends: list[Job], timeout: float, environ: Mapping[str, str], why: str
) -> str:
    """Ask with torch's autoload of vendors' packages switched off; returns what there is to say about that."""
    try:
        _ask(rows, activations + backends, timeout, {**environ, _AUTOLOAD: "0"}, imports_torch=True)
    except _TorchFails:
        _ask(rows, activations, timeout, environ)
        for row in rows:
            if row.state == "installed" and any(_is_about(job, row.to_dict()) for job in backends):
                row.state, row.reason = "failed", f"import torch fails: {why}"
        return f"import torch fails, and with it every backend: {why}"
    return (
        f"import torch fails: {why}. It works with {_AUTOLOAD}=0, so what breaks it is among the packages that torch "
        f"loads by their entry points of the group torch.backends: {_autoloaded()}. Valid: {_AUTOLOAD}=0 in the "
        "environment, with which the states above were found; or to uninstall or mend that package."
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
    return ", ".join(sorted(found)) or "none is found"


class _TorchFails(Exception):
    """``import torch`` fails in a process of its own."""


def _ask(
    rows: list[Row], jobs: list[Job], timeout: float, environ: Mapping[str, str], *, imports_torch: bool = False
) -> None:
    """Put each job's answer into its rows; what a process dies of is the answer to that job, and a new one goes on.

    Raises:
        _TorchFails: ``import torch`` fails, which is tried first if ``imports_torch``.
    """
    first: list[Job] = [{"id": -1, "do": "torch", "timeout": _IMPORT_TORCH}] if imports_torch else []
    pending: list[Job] = [{**job, "id": number, "timeout": timeout} for number, job in enumerate(jobs)]
    while pending:
        with WorkerProcess("probe", first + pending, timeout, environ) as process:
            answers = process.finish(START + _IMPORT_TORCH + timeout * len(pending))
            failure = answers.get(-1, process.death) if imports_torch else {}
            if failure:
                raise _TorchFails(failure["error"])
            unanswered = [job for job in pending if job["id"] not in answers]
            for dead in unanswered[:1]:
                answers[dead["id"]] = process.death
        for job in pending:
            if job["id"] in answers:
                _record(rows, job, answers[job["id"]])
        pending = [job for job in unanswered[1:] if not _is_about(unanswered[0], job)]


def _is_about(job: Job, facts: Mapping[str, object]) -> bool:
    """Whether ``job`` is about the backend with these facts; an activation is about every backend of its module."""
    keys = ("distribution", "module", "kind", "name") if job["do"] == "backend" else ("distribution", "module")
    return all(job[key] == facts[key] for key in keys)


def _record(rows: list[Row], job: Job, answer: Answer) -> None:
    if "error" in answer:
        for row in rows:
            if row.state == "installed" and _is_about(job, row.to_dict()):
                row.state, row.reason, row.detail = "failed", answer["error"], answer["detail"]
        return
    for facts in answer["rows"]:
        about = {"do": "backend", **facts}
        found = [row for row in rows if _is_about(about, row.to_dict())]
        if not found:  # handed over, but not declared
            found = [Row(kind=facts["kind"], name=facts["name"], distribution=facts["distribution"])]
            rows += found
        for slot, value in facts.items():
            setattr(found[0], slot, tuple(value) if isinstance(value, list) else value)
