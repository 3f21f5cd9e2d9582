"""Learning about plugins without importing them here: from the cache, or in a process that may crash or hang.

What that process answers is JSON: :func:`learn` and :func:`vet` run in the one that :mod:`core.discovery.probe` starts.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from .. import specs
from ..errors import ConfigurationError, CoreError, LaunchError
from ..kinds import KINDS
from ..specs import AcceleratorSpec, BackendSpec
from .activation import Activation, Elsewhere, Failure, activate
from .cache import Cache
from .import_side_effects import ProcessState
from .loading import describe, import_target, load_target, target_name, trace
from .probe import ask
from .scan import Row

logger = logging.getLogger(__name__)


VARIABLE = "CORE_PROBE_TIMEOUT"
_LIMIT = 20.0
"""Seconds that a hook module, or the import of a backend's class, may take."""
_FAILURES_KEPT = 3600.0
"""Seconds for which a failure is not asked for again, unless the backend is named."""

Module = tuple[Row, Mapping[str, set[str]]]
"""A row of a plugin module, and the names that the module declares, by kind."""


@attrs.frozen
class Verdict:
    """Whether a backend's class can be imported in this process."""

    error: str = ""
    """Why not; empty if it can."""
    detail: str = ""
    """The traceback, or what the process printed."""
    count: int | None = None
    """The number of devices that an accelerator reports; ``None`` if it was not asked."""
    count_error: str | None = None
    """What the accelerator raises instead."""


class Learning:
    """Answers about plugins that other processes give, each of them once for a set of installed distributions.

    Args:
        environ: The environment variables: where the cache is, and ``CORE_PROBE_TIMEOUT``.

    Raises:
        ConfigurationError: ``CORE_PROBE_TIMEOUT`` is not a number of seconds.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._limit = _seconds(environ)
        self._cache: Cache | None = None

    @property
    def cache(self) -> Cache:
        """The answers of earlier runs."""
        if self._cache is None:
            self._cache = Cache(self._environ)
        return self._cache

    def activations(self, modules: Iterable[Module], *, refresh: bool = False) -> list[Activation]:
        """What the hooks of plugin modules say, in the order of ``modules``.

        Args:
            modules: The modules.
            refresh: Whether a failure that an earlier run has found is asked for again.
        """
        modules = list(modules)
        keys = [
            _key(row, sorted((kind, *sorted(names)) for kind, names in declared.items())) for row, declared in modules
        ]
        found: dict[int, Activation] = {}
        for number, (row, _) in enumerate(modules):
            answer = self.cache.get(keys[number], row.module)
            if answer is not None and answer["failures"]:
                answer = None if refresh else self.cache.get(keys[number], row.module, _FAILURES_KEPT)
            if answer is not None:
                found[number] = activation_of(answer, is_old=True)
        asked = {number: module for number, module in enumerate(modules) if number not in found}
        answers = self._learnt(asked)
        lasting = {number: answer for number, answer in answers.items() if answer.get("is_lasting", True)}
        self.cache.put({keys[number]: (modules[number][0].module, answer) for number, answer in lasting.items()})
        found |= {number: activation_of(answer) for number, answer in answers.items()}
        return [found[number] for number in range(len(modules))]

    def _learnt(self, asked: Mapping[int, Module]) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        for with_torch in (False, True):
            # A module that imports torch is asked again with torch imported before: does it change torch?
            jobs: list[dict[str, Any]] = [
                {
                    "id": number,
                    "do": "learn",
                    "module": row.module,
                    "declared": {kind: sorted(names) for kind, names in declared.items()},
                }
                for number, (row, declared) in asked.items()
                if not with_torch or answers[number]["imports_torch"]
            ]
            given = self._ask(jobs, with_torch=with_torch)
            for job in jobs:
                answer = given[job["id"]]
                if "error" in answer:
                    is_lasting = answer.get("is_harmful", True)
                    answer = failed_activation(asked[job["id"]][1], answer["error"], answer["detail"])
                    answer["is_lasting"] = is_lasting
                answers[job["id"]] = answer
        return answers

    def verdict(self, spec: BackendSpec, row: Row, *, refresh: bool = False, with_count: bool = False) -> Verdict:
        """Whether the class of ``spec`` can be imported here; what is harmless is not asked again.

        Args:
            spec: The spec.
            row: The row of the backend that it comes from.
            refresh: Whether a class is asked for again that an earlier run has found harmful.
            with_count: Whether to ask how many devices an accelerator reports now.
        """
        data = encoded(spec)
        module = data["fields"]["target"].partition(":")[0]
        # Of an accelerator, an object is made and asked for its devices; of another kind, only the module is imported.
        asked = [data["fields"]["target"], data["fields"]["init_args"]] if spec.kind == "accelerator" else module
        key = _key(row, asked)
        known = self.cache.get(key, module)
        if known is not None and known["error"]:
            known = None if refresh else self.cache.get(key, module, _FAILURES_KEPT)
        if known is not None and (known["error"] or not with_count):
            return Verdict(**known)
        answer = self._ask([{"id": 0, "do": "vet", "spec": data}], with_torch=True)[0]
        # What it raises may depend on the machine's state; what ends the process, hangs or changes it is harmful.
        if answer.pop("is_harmful", True):
            kept = {"error": answer.get("error", ""), "detail": answer.get("detail", "")}
            self.cache.put({key: (module, kept)})
        return Verdict(**answer)

    def served(self, spec: AcceleratorSpec) -> list[str]:
        """The names that a spec's ``discover`` returns now.

        Raises:
            LaunchError: It raises an exception, or ends its process.
        """
        answer = self._ask([{"id": 0, "do": "discover", "discover": spec.discover}], with_torch=True)[0]
        if "error" in answer:
            raise LaunchError(answer["error"])
        names: list[str] = answer["names"]
        return names

    def started(self, found: Iterable[Any], environ: Mapping[str, str]) -> dict[str, bool | str]:
        """By name of a cluster environment, whether it has started this process, or why it could not say.

        Args:
            found: The specs.
            environ: The environment variables that they are asked about.
        """
        jobs: list[dict[str, Any]] = [
            {"id": number, "do": "started", "spec": encoded(spec), "environ": dict(environ)}
            for number, spec in enumerate(found)
        ]
        needs_torch = any(job["spec"]["fields"]["detect"] is None for job in jobs)
        answers = self._ask(jobs, with_torch=needs_torch)
        return {
            job["spec"]["fields"]["name"]: answers[job["id"]].get("error") or answers[job["id"]]["started"]
            for job in jobs
        }

    def _ask(self, jobs: list[dict[str, Any]], *, with_torch: bool) -> dict[int, Any]:
        if not jobs:
            return {}
        try:
            return ask(jobs, self._limit, imports_torch=with_torch)
        except LaunchError as error:
            return {job["id"]: {"error": str(error), "detail": "", "is_harmful": False} for job in jobs}


def _key(row: Row, more: Any) -> str:
    return json.dumps([row.distribution, row.version, row.location, row.module, more], sort_keys=True)


def _seconds(environ: Mapping[str, str]) -> float:
    text = environ.get(VARIABLE, "")
    try:
        seconds = float(text) if text else _LIMIT
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 86400.0:
        raise ConfigurationError(
            f"{VARIABLE}={text!r} is not a number of seconds. Set more than 0 and less than 86400."
        )
    return seconds


_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def encoded(spec: specs.BackendSpec) -> dict[str, Any]:
    """A spec as plain data; ``plain`` is false if something is left out that has no such form."""
    fields = {field.name: getattr(spec, field.name) for field in attrs.fields(getattr(specs, KINDS[spec.kind].spec))}
    target, init_args = target_name(spec.target), dict(spec.init_args)
    is_plain = isinstance(spec.target, str) and _is_plain(init_args)
    fields["target"] = target if _TARGET.fullmatch(target) else "builtins:object"
    fields["init_args"] = init_args if is_plain else {}
    for name, value in fields.items():
        if isinstance(value, tuple):
            fields[name] = list(value)
    return {"kind": spec.kind, "plain": is_plain, "fields": fields}


def decoded(data: Mapping[str, Any]) -> Any:
    """The spec that :func:`encoded` returned as data."""
    return getattr(specs, KINDS[data["kind"]].spec)(**data["fields"])


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    return value is None or type(value) in (str, int, float, bool)


# -- in the other process ----------------------------------------------------------------------------------------------


def changed_by(changes: str) -> str:
    """The reason to reject a plugin that makes these changes when it is imported."""
    return f"its import changes this process, which could spoil the program that uses it: {changes}"


def learn(job: Mapping[str, Any]) -> dict[str, Any]:
    """What the hooks of a module say: ``specs``, ``failures``, ``output``, and whether it has imported torch.

    Args:
        job: ``module``, and ``declared``, the declared names by kind.
    """
    declared = {kind: set(names) for kind, names in job["declared"].items()}
    had_torch = "torch" in sys.modules
    state = ProcessState()
    activation = activate(job["module"], declared, (BaseException,))
    failures = dict(activation.failures)
    if changes := state.take_changes():
        failures |= {(kind, name): Failure(changed_by(changes)) for kind, names in declared.items() for name in names}
    return {
        "specs": [encoded(spec) for key, spec in activation.specs.items() if key not in failures],
        "failures": [[kind, name, fault.reason, fault.traceback] for (kind, name), fault in failures.items()],
        "output": activation.output,
        "imports_torch": "torch" in sys.modules and not had_torch,
    }


def vet(job: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a backend's class can be imported without harm: ``count``, or ``error`` and ``detail``.

    ``count`` is the number of devices that an accelerator reports, and ``count_error`` what it raises instead; both are
    ``None`` for other kinds.

    Args:
        job: ``spec``, as :func:`encoded` returned it.
    """
    spec = decoded(job["spec"])
    for kind in KINDS.values():
        import_target(kind.base)  # what core itself changes is not the plugin's change
    state = ProcessState()
    error: BaseException | None = None
    try:
        cls = load_target(spec)
    except BaseException as raised:  # noqa: BLE001  this process is made for whatever a plugin raises
        error = raised
    if changes := state.take_changes():
        return {"error": changed_by(changes), "detail": ""}
    if error is not None:
        text = str(error) if isinstance(error, CoreError) else describe(error)
        return {"error": text, "detail": trace(error), "is_harmful": False}
    count, count_error = None, None
    if spec.kind == "accelerator" and not spec.discover and job["spec"]["plain"]:
        try:
            accelerator = cls(**spec.init_args)
            count = int(accelerator.auto_device_count()) if accelerator.is_available() else 0
        except BaseException as raised:  # noqa: BLE001  as above
            count_error = describe(raised)
    return {"count": count, "count_error": count_error}


# -- in the process that asked -----------------------------------------------------------------------------------------


def activation_of(answer: Mapping[str, Any], *, is_old: bool = False) -> Activation:
    """The answer of :func:`learn` as an activation."""
    usable = {(data["kind"], data["fields"]["name"]): decoded(data) for data in answer["specs"]}
    not_plain = [(data["kind"], data["fields"]["name"]) for data in answer["specs"] if not data["plain"]]
    failures = {
        (kind, name): Failure(reason, Elsewhere(detail) if detail else None)
        for kind, name, reason, detail in answer["failures"]
    }
    return Activation(usable, failures, answer["output"], frozenset(not_plain), is_old=is_old and bool(failures))


def failed_activation(declared: Mapping[str, set[str]], reason: str, detail: str) -> dict[str, Any]:
    """The answer of :func:`learn` for a module that ended the process."""
    return {
        "specs": [],
        "failures": [[kind, name, reason, detail] for kind, names in declared.items() for name in sorted(names)],
        "output": "",
        "imports_torch": False,
    }
