"""Choosing the accelerator: by name, by an alias that several claim, or by what is there."""

from __future__ import annotations

import logging
from typing import Any, cast

import attrs

from core.accelerators.base import Accelerator
from core.discovery.loading import import_target
from core.discovery.probe import detect
from core.discovery.registry import Registry
from core.errors import BackendError, CoreError, UnknownNameError, quoted
from core.plan.model import Choice, PassedOver
from core.specs import AcceleratorSpec

__all__ = ["choose_accelerator"]

logger = logging.getLogger(__name__)


@attrs.frozen
class _Absent:
    """A candidate that cannot be used here, and why."""

    reason: str
    broken: bool = False


def choose_accelerator(word: str, source: str, registry: Registry) -> tuple[Choice, Accelerator, AcceleratorSpec]:
    """The accelerator that ``word`` means here.

    Args:
        word: A name, an alias, or ``"auto"``.
        source: Where the word came from, for the reason.
        registry: What is installed and registered.

    Raises:
        UnknownNameError: Nobody claims the word.
        BackendError: Who claims it cannot be used here; the message has the cause of each.
    """
    if word == "auto":
        return _first_present(_all(registry), "auto", "the present accelerator of highest priority", registry)
    specs = _claimants(word, registry)
    if len(specs) > 1:
        reason = f"{source} says {word!r}, which {quoted(spec.name for spec in specs)} claim; best present by priority"
        return _first_present(specs, word, reason, registry)
    outcome = _present(specs[0], registry)
    if isinstance(outcome, _Absent):
        raise BackendError(f"accelerator={word!r}: cannot be used here: {outcome.reason}. {_valid(registry)}")
    return _choice(specs[0], f"{source} says {word!r}", (), registry), outcome, specs[0]


def _all(registry: Registry) -> list[AcceleratorSpec]:
    specs: list[AcceleratorSpec] = []
    for spec in _installed(registry):
        specs += _served(spec, registry) if spec.serves else [spec]
    return sorted(specs, key=lambda spec: (-spec.priority, spec.name))


def _installed(registry: Registry) -> list[AcceleratorSpec]:
    return cast(list[AcceleratorSpec], registry.specs("accelerator"))


def _claimants(word: str, registry: Registry) -> list[AcceleratorSpec]:
    try:
        found = cast(list[AcceleratorSpec], registry.find("accelerator", word))
    except UnknownNameError:
        found = [
            served
            for spec in _installed(registry)
            if spec.serves
            for served in _served(spec, registry)
            if served.name == word
        ]
        if not found:
            raise
    specs = [served for spec in found for served in (_served(spec, registry) if spec.serves else [spec])]
    if not specs:
        raise BackendError(f"accelerator={word!r}: serves no device here. {_valid(registry)}")
    return specs


def _served(spec: AcceleratorSpec, registry: Registry) -> list[AcceleratorSpec]:
    """``spec`` once for each further name it serves now, under that name; installed backends' names are left to them."""
    assert spec.serves is not None
    owned = {row.name for row in registry.rows("accelerator")}
    names = [name for name in import_target(spec.serves)() if name not in owned]
    return [
        attrs.evolve(spec, name=name, aliases=(), serves=None, init_args={**spec.init_args, "name": name})
        for name in names
    ]


def _first_present(
    specs: list[AcceleratorSpec], word: str, reason: str, registry: Registry
) -> tuple[Choice, Accelerator, AcceleratorSpec]:
    counts = detect([spec for spec in specs if spec.detect])
    chosen: tuple[AcceleratorSpec, Accelerator] | None = None
    passed_over = [PassedOver(row.name, row.reason) for row in registry.failures("accelerator")]
    for spec in specs:
        if chosen is not None:
            passed_over.append(PassedOver(spec.name, f"priority {spec.priority} is below {chosen[0].name}'s"))
            continue
        result = counts.get(spec.name)
        if result is not None and result.error is not None:
            outcome: Accelerator | _Absent = _Absent(f"detection failed: {result.error}", broken=True)
        elif result is not None and not result.count:
            outcome = _Absent("no device is there")
        else:
            outcome = _present(spec, registry)
        if isinstance(outcome, _Absent):
            passed_over.append(PassedOver(spec.name, outcome.reason))
            if outcome.broken:
                logger.warning("accelerator=%r passes over %r: %s", word, spec.name, outcome.reason)
        else:
            chosen = (spec, outcome)
    if chosen is None:
        reasons = "; ".join(f"{other.name}: {other.reason}" for other in passed_over)
        raise BackendError(f"accelerator={word!r}: nothing that it may mean is present ({reasons}). {_valid(registry)}")
    return _choice(chosen[0], reason, tuple(passed_over), registry), chosen[1], chosen[0]


def _present(spec: AcceleratorSpec, registry: Registry) -> Accelerator | _Absent:
    """The accelerator, if its class can be had and says that it is available."""
    try:
        accelerator: Accelerator = registry.load(spec)(**spec.init_args)
        accelerator.name = spec.name
        if accelerator.is_available():
            return accelerator
    except CoreError as error:
        return _Absent(str(error), broken=True)
    except Exception as error:  # noqa: BLE001  a vendor's class may raise anything; the reason is kept and shown
        return _Absent(f"{type(error).__name__}: {error}", broken=True)
    return _Absent("no device is there")


def _choice(spec: AcceleratorSpec, reason: str, passed_over: tuple[PassedOver, ...], registry: Registry) -> Choice:
    target: Any = spec.target
    return Choice(
        name=spec.name,
        reason=reason,
        origin=registry.origin(spec),
        passed_over=passed_over,
        target=target if isinstance(target, str) else None,
        init_args=dict(spec.init_args),
    )


def _valid(registry: Registry) -> str:
    return f"Valid: 'auto', {quoted(registry.names('accelerator'))}, or a device type that torch reports."
