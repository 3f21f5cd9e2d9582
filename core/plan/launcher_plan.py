"""A process that a launcher started takes the launcher's Plan: it does not scan again, so it cannot disagree."""

from __future__ import annotations

from typing import Any

import attrs

from .. import specs
from ..discovery.loading import load
from ..discovery.registry import Registry
from ..environments.inherited import claim_ranks
from ..environments.local import LAUNCH_VARIABLES, LAUNCHED
from ..kinds import KINDS
from .construction import construct
from .model import Choice, Plan
from .request import Argument, Request, checked

__all__ = ["take_launched"]


def take_launched(request: Request) -> Plan | None:
    """The launcher's Plan with live parts of this process; ``None`` if the Plan is the answer to another request.

    The Plan has no reasons and no rejected candidates; see :meth:`core.plan.Plan.for_ranks`.

    Raises:
        CoreError: A part cannot be constructed in this process.
    """
    if request.is_of_process:
        claim_ranks([LAUNCHED], LAUNCH_VARIABLES)
    plan = Plan.from_json(request.environ[LAUNCHED])
    if plan.request != request.describe():
        return None
    strategy = _part("strategy", plan.strategy, request.strategy, request)
    requested = {kind: checked(Argument(kind, value, "strategy")) for kind, value in strategy.requested_parts.items()}
    parts = {
        kind: strategy
        if kind == "strategy"
        else _part(kind, choice, requested.get(kind, getattr(request, kind)), request)
        for kind, choice in plan.choices().items()
    }
    return attrs.evolve(plan, parts=parts)


def _part(kind: str, choice: Choice, value: Any, request: Request) -> Any:
    if not isinstance(value, str):
        return value
    if choice.target is None:
        spec = Registry.read(request.environ).find(kind, choice.name)[0]
    else:
        spec = getattr(specs, KINDS[kind].spec)(name=choice.name, target=choice.target, init_args=choice.init_args)
    return construct(spec, load(spec), **({"environ": request.environ} if kind == "cluster_environment" else {}))
