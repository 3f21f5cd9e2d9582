"""Choosing the accelerator: by name, by an alias that several backends claim, or by what is present."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import cast

import attrs

from ..accelerators.base import Accelerator
from ..discovery.loading import describe
from ..discovery.probe import DetectResult, detect
from ..discovery.registry import Registry
from ..discovery.scan import Row
from ..errors import BackendError, CoreError, UnknownNameError, quoted
from ..specs import AcceleratorSpec, BackendSpec
from .assembly import construct
from .model import Choice, Rejected
from .request import Argument

logger = logging.getLogger(__name__)

Chosen = tuple[Choice, Accelerator, AcceleratorSpec]

_NO_DEVICE = "no device found"


@attrs.frozen
class _Absent:
    """Why a candidate cannot be used here."""

    reason: str
    broken: bool = False
    cause: BaseException | None = None


def choose_accelerator(argument: Argument, registry: Registry) -> Chosen:
    """The accelerator that ``argument`` asks for: the choice, the object, and the spec that it was made from.

    Raises:
        UnknownNameError: No backend has this name or alias.
        BackendError: None of the backends that have it can be used here; the message has the cause for each.
    """
    if argument.is_auto:
        specs, idle = _expanded(_all(registry), registry)
        idle += unusable("accelerator", registry)
        reason = "has the highest priority of the accelerators present"
        return _first_present(specs, argument, reason, idle, registry)
    specs, idle = _claimants(argument, registry)
    if len(specs) != 1 or idle:
        names = [spec.name for spec in specs] + [candidate.name for candidate in idle]
        listed = quoted(names, near=argument.value)
        reason = f"{argument.reason}, an alias of {listed}; has the highest priority of those present"
        return _first_present(specs, argument, reason, idle, registry)
    outcome = _present(specs[0], registry)
    if isinstance(outcome, _Absent):
        valid = _valid(registry, argument, specs[0].name)
        raise BackendError(f"{argument} cannot be used here: {outcome.reason}. {valid}") from outcome.cause
    return Choice.of(specs[0], argument.reason, registry.origin(specs[0])), outcome, specs[0]


def outranked(spec: BackendSpec, by: BackendSpec) -> Rejected:
    """``spec``, which comes after the chosen backend ``by``."""
    if spec.priority == by.priority:
        return Rejected(spec.name, f"{by.name} has the same priority ({by.priority}) and comes first by name")
    return Rejected(spec.name, f"its priority ({spec.priority}) is lower than that of {by.name} ({by.priority})")


def unusable(kind: str, registry: Registry) -> list[Rejected]:
    """The installed or registered backends of this kind that cannot be used, and why."""
    usable = {spec.name for spec in registry.specs(kind)}
    rows: dict[str, list[Row]] = {}
    for row in registry.rows(kind):
        if row.name not in usable:
            rows.setdefault(row.name, []).append(row)
    return [Rejected(name, _why_unusable(claims)) for name, claims in rows.items()]


def _why_unusable(rows: list[Row]) -> str:
    reasons = dict.fromkeys(f"{row.state}: {row.reason}" for row in rows if row.reason)
    return "; ".join(reasons) or f"{' and '.join(row.origin for row in rows)} both have a class of this name"


def _all(registry: Registry) -> list[AcceleratorSpec]:
    return cast(list[AcceleratorSpec], registry.specs("accelerator"))


def _claimants(argument: Argument, registry: Registry) -> tuple[list[AcceleratorSpec], list[Rejected]]:
    try:
        found = cast(list[AcceleratorSpec], registry.find("accelerator", argument.value, argument=argument.label))
    except UnknownNameError:
        discovered, _ = _expanded([spec for spec in _all(registry) if spec.discover], registry)
        named = [spec for spec in discovered if spec.name == argument.value.lower()]
        if not named:
            raise
        return named, []
    return _expanded(found, registry)


def _expanded(specs: Sequence[AcceleratorSpec], registry: Registry) -> tuple[list[AcceleratorSpec], list[Rejected]]:
    """The candidates by priority, a spec with ``discover`` once for each name that it discovers; and the rejected."""
    expanded: list[AcceleratorSpec] = []
    idle: list[Rejected] = []
    for spec in sorted(specs, key=lambda spec: (-spec.priority, spec.name)):
        if spec.discover is None:
            expanded.append(spec)
            continue
        try:
            discovered = [
                attrs.evolve(spec, name=name, aliases=(), discover=None, init_args={**spec.init_args, "name": name})
                for name in registry.served(spec)
            ]
        except (Exception, SystemExit) as error:  # noqa: BLE001  a vendor's function may raise anything; shown
            idle.append(_warned(Rejected(spec.name, f"discovering its devices failed: {describe(error)}")))
            continue
        expanded += discovered
        if not discovered:
            idle.append(Rejected(spec.name, _NO_DEVICE))
    return expanded, idle


def _first_present(
    specs: list[AcceleratorSpec], argument: Argument, reason: str, rejected: list[Rejected], registry: Registry
) -> Chosen:
    counts = detect([spec for spec in specs if spec.detect])
    chosen: tuple[AcceleratorSpec, Accelerator] | None = None
    for spec in specs:
        if chosen is not None:
            rejected.append(outranked(spec, chosen[0]))
            continue
        result = counts.get(spec.name)
        if result is not None and result.error is not None:
            outcome: Accelerator | _Absent = _Absent(f"detection failed: {result.error}", broken=True)
        elif result is not None and not result.count:
            outcome = _Absent(_NO_DEVICE)
        else:
            outcome = _present(spec, registry, is_asked_first=not spec.detect and registry.is_foreign(spec))
        if isinstance(outcome, Accelerator):
            chosen = (spec, outcome)
        else:
            candidate = Rejected(spec.name, outcome.reason)
            rejected.append(_warned(candidate) if outcome.broken else candidate)
    if chosen is None:
        reasons = "; ".join(f"{other.name}: {other.reason}" for other in rejected)
        valid = _valid(registry, argument, *(other.name for other in rejected))
        raise BackendError(f"{argument}: no accelerator can be used here ({reasons}). {valid}")
    spec, accelerator = chosen
    _tell_ties(spec, specs, counts)
    return Choice.of(spec, reason, registry.origin(spec), rejected), accelerator, spec


def _tell_ties(chosen: AcceleratorSpec, specs: list[AcceleratorSpec], counts: Mapping[str, DetectResult]) -> None:
    """Log which accelerators that are present have lost only by their name."""
    ties = [
        spec.name
        for spec in specs
        if spec.priority == chosen.priority
        and spec.target != chosen.target
        and (spec.name not in counts or counts[spec.name].count)
    ]
    if ties:
        logger.warning(
            "accelerator %r is used; %s has the same priority (%d) and comes later by name. To decide, set "
            "accelerator= or CORE_ACCELERATOR to a name, or deny one: CORE_PLUGINS=-%s",
            chosen.name,
            quoted(ties),
            chosen.priority,
            chosen.name,
        )


def _warned(candidate: Rejected) -> Rejected:
    logger.warning("accelerator %r cannot be used: %s", candidate.name, candidate.reason)
    return candidate


def _present(spec: AcceleratorSpec, registry: Registry, *, is_asked_first: bool = False) -> Accelerator | _Absent:
    """The accelerator, if its class can be imported and reports that it is available.

    With ``is_asked_first``, a separate process is asked before: this one does not import what has no devices.
    """
    try:
        if is_asked_first and not registry.device_count(spec):
            return _Absent(_NO_DEVICE)
        spec = registry.complete(spec)
        accelerator: Accelerator = construct(spec, registry.load(spec))
        if accelerator.is_available():
            return accelerator
    except CoreError as error:
        return _Absent(str(error), broken=True, cause=error.__cause__)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a vendor's class may raise anything; shown
        return _Absent(describe(error), broken=True, cause=error)
    return _Absent(_NO_DEVICE)


def _valid(registry: Registry, argument: Argument, *refused: str) -> str:
    usable = [name for name in registry.names("accelerator") if name not in (argument.value, *refused)]
    names = quoted(usable, near=argument.value)
    return f"Valid: 'auto', {names}, or a device type that torch reports."
