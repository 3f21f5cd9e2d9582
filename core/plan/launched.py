"""Ranks get the launcher's Plan: a process that was started does not scan again and cannot disagree."""

from __future__ import annotations

from typing import Any

import attrs

from core import specs
from core.discovery.loading import load
from core.discovery.registry import Registry
from core.environments.local import LAUNCHED
from core.kinds import KINDS
from core.plan.construction import construct
from core.plan.model import Choice, Plan
from core.plan.request import Request, Word, checked

__all__ = ["take_launched"]


def take_launched(request: Request) -> Plan | None:
    """The launcher's Plan with this process's own parts, or ``None`` where it was made for other words than these."""
    plan = Plan.from_json(request.environ[LAUNCHED])
    if plan.request != request.describe():
        return None
    strategy = _part("strategy", plan.strategy, request.strategy, request)
    given = {kind: checked(Word(kind, value, "strategy")) for kind, value in strategy.given.items()}
    parts = {
        kind: strategy if kind == "strategy" else _part(kind, choice, given.get(kind, getattr(request, kind)), request)
        for kind, choice in plan.choices().items()
    }
    return attrs.evolve(plan, parts=parts)


def _part(kind: str, choice: Choice, word: Any, request: Request) -> Any:
    if not isinstance(word, str):
        return word
    if choice.target is None:
        spec = Registry.read(request.environ).find(kind, choice.name)[0]
    else:
        spec = getattr(specs, KINDS[kind].spec)(name=choice.name, target=choice.target, init_args=choice.init_args)
    return construct(spec, load(spec), **({"environ": request.environ} if kind == "cluster_environment" else {}))
