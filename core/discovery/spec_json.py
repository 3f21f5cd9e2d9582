"""Specs, failures and verdicts about a plugin as plain data, which one process sends to another.

:func:`learn` and :func:`vet` run in the process that :mod:`core.discovery.probe` starts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import attrs

from .. import specs
from ..errors import CoreError
from ..kinds import KINDS
from .activation import Activation, Elsewhere, Failure, activate
from .import_side_effects import ProcessState
from .loading import describe, import_target, load_target, target_name, trace

__all__ = ["activation_of", "changed_by", "decoded", "encoded", "failed_activation", "learn", "vet"]

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
    """Why a plugin is refused whose import makes these changes."""
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
