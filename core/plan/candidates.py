"""Choosing the accelerator: by name, by an alias that several claim, or by what is there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import attrs

from core.accelerators.base import Accelerator
from core.discovery.loading import describe
from core.discovery.probe import detect
from core.discovery.registry import Registry
from core.discovery.scan import Row
from core.errors import BackendError, CoreError, UnknownNameError, quoted
from core.plan.construction import construct
from core.plan.model import Choice, PassedOver
from core.plan.request import Word
from core.specs import AcceleratorSpec, BackendSpec

__all__ = ["choose_accelerator", "outranked", "unusable"]

logger = logging.getLogger(__name__)

Chosen = tuple[Choice, Accelerator, AcceleratorSpec]


@attrs.frozen
class _Absent:
    """A candidate that cannot be used here, and why."""

    reason: str
    broken: bool = False
    cause: BaseException | None = None


def choose_accelerator(word: Word, registry: Registry) -> Chosen:
    """The accelerator that ``word`` means here: the choice, the object, and the spec that it was made from.

    Args:
        word: A name, an alias, or ``"auto"``.
        registry: What is installed and registered.

    Raises:
        UnknownNameError: Nobody claims the word.
        BackendError: Who claims it cannot be used here; the message has the cause of each.
    """
    if word.is_auto:
        specs, idle = _expanded(_all(registry), registry)
        idle += unusable("accelerator", registry)
        return _first_present(specs, word, "it is the present accelerator of highest priority", idle, registry)
    specs, idle = _claimants(word, registry)
    if len(specs) != 1 or idle:
        names = [spec.name for spec in specs] + [candidate.name for candidate in idle]
        claim = f"{word.said}, which {quoted(names)} claim"
        return _first_present(specs, word, f"{claim}; best present by priority", idle, registry)
    outcome = _present(specs[0], registry)
    if isinstance(outcome, _Absent):
        raise BackendError(f"{word}: cannot be used here: {outcome.reason}. {_valid(registry)}") from outcome.cause
    return Choice.of(specs[0], word.said, registry.origin(specs[0])), outcome, specs[0]


def outranked(spec: BackendSpec, by: BackendSpec) -> PassedOver:
    """``spec``, which comes after another candidate."""
    below = f"priority {spec.priority} is below {by.name}'s"
    tied = f"{by.name} has the same priority, {spec.priority}, and comes before it"
    return PassedOver(spec.name, tied if spec.priority == by.priority else below)


def unusable(kind: str, registry: Registry) -> list[PassedOver]:
    """The backends of that kind that are installed or registered but cannot be asked for, and why."""
    usable = {spec.name for spec in registry.specs(kind)}
    rows: dict[str, list[Row]] = {}
    for row in registry.rows(kind):
        if row.name not in usable:
            rows.setdefault(row.name, []).append(row)
    return [PassedOver(name, _why_unusable(claims)) for name, claims in rows.items()]


def _why_unusable(rows: list[Row]) -> str:
    reasons = dict.fromkeys(f"{row.state}: {row.reason}" for row in rows if row.reason)
    return "; ".join(reasons) or f"{' and '.join(row.origin for row in rows)} each have a class of this name"


def _all(registry: Registry) -> list[AcceleratorSpec]:
    return cast(list[AcceleratorSpec], registry.specs("accelerator"))


def _claimants(word: Word, registry: Registry) -> tuple[list[AcceleratorSpec], list[PassedOver]]:
    try:
        found = cast(list[AcceleratorSpec], registry.find("accelerator", word.value, argument=word.label))
    except UnknownNameError:
        served, _ = _expanded([spec for spec in _all(registry) if spec.serves], registry)
        named = [spec for spec in served if spec.name == word.value]
        if not named:
            raise
        return named, []
    return _expanded(found, registry)


def _expanded(specs: Sequence[AcceleratorSpec], registry: Registry) -> tuple[list[AcceleratorSpec], list[PassedOver]]:
    """The candidates by rank, one that serves further names once as each of them; and those that serve none now."""
    expanded: list[AcceleratorSpec] = []
    idle: list[PassedOver] = []
    for spec in sorted(specs, key=lambda spec: (-spec.priority, spec.name)):
        if spec.serves is None:
            expanded.append(spec)
            continue
        try:
            served = [
                attrs.evolve(spec, name=name, aliases=(), serves=None, init_args={**spec.init_args, "name": name})
                for name in registry.served(spec)
            ]
        except (Exception, SystemExit) as error:  # noqa: BLE001  a vendor's function may raise anything; shown
            idle.append(_warned(PassedOver(spec.name, f"cannot tell what it serves: {describe(error)}")))
            continue
        expanded += served
        if not served:
            idle.append(PassedOver(spec.name, "there is no device that it would serve"))
    return expanded, idle


def _first_present(
    specs: list[AcceleratorSpec], word: Word, reason: str, passed_over: list[PassedOver], registry: Registry
) -> Chosen:
    counts = detect([spec for spec in specs if spec.detect])
    chosen: tuple[AcceleratorSpec, Accelerator] | None = None
    for spec in specs:
        if chosen is not None:
            passed_over.append(outranked(spec, chosen[0]))
            continue
        result = counts.get(spec.name)
        if result is not None and result.error is not None:
            outcome: Accelerator | _Absent = _Absent(f"detection failed: {result.error}", broken=True)
        elif result is not None and not result.count:
            outcome = _Absent("no device is there")
        else:
            outcome = _present(spec, registry)
        if isinstance(outcome, Accelerator):
            chosen = (spec, outcome)
        else:
            candidate = PassedOver(spec.name, outcome.reason)
            passed_over.append(_warned(candidate) if outcome.broken else candidate)
    if chosen is None:
        reasons = "; ".join(f"{other.name}: {other.reason}" for other in passed_over)
        raise BackendError(f"{word}: nothing that it may mean is present ({reasons}). {_valid(registry)}")
    spec, accelerator = chosen
    return Choice.of(spec, reason, registry.origin(spec), passed_over), accelerator, spec


def _warned(candidate: PassedOver) -> PassedOver:
    logger.warning("accelerator %r is passed over: %s", candidate.name, candidate.reason)
    return candidate


def _present(spec: AcceleratorSpec, registry: Registry) -> Accelerator | _Absent:
    """The accelerator, if its class can be had and says that it is available."""
    try:
        accelerator: Accelerator = construct(spec, registry.load(spec))
        if accelerator.is_available():
            return accelerator
    except CoreError as error:
        return _Absent(str(error), broken=True, cause=error.__cause__)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a vendor's class may raise anything; shown
        return _Absent(describe(error), broken=True, cause=error)
    return _Absent("no device is there")


def _valid(registry: Registry) -> str:
    return f"Valid: 'auto', {quoted(registry.names('accelerator'))}, or a device type that torch reports."
