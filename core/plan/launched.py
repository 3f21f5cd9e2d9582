"""Ranks get the launcher's Plan: a process that was started does not scan again and cannot disagree."""

from __future__ import annotations

from typing import Any

import attrs

from core import specs
from core.discovery.loading import load
from core.discovery.registry import Registry
from core.environments.local import LAUNCHED
from core.kinds import KINDS
from core.plan.model import Choice, Plan
from core.plan.request import Request

__all__ = ["take_launched"]


def take_launched(request: Request) -> Plan | None:
    """The launcher's Plan with this process's own parts, or ``None`` where it was made for other words than these."""
    plan = Plan.from_json(request.environ[LAUNCHED])
    if plan.request != request.describe():
        return None
    strategy = _part("strategy", plan.strategy, request, {})
    given = strategy.given if hasattr(strategy, "given") else {}
    parts = {kind: _part(kind, choice, request, given) for kind, choice in plan.choices().items()}
    parts["strategy"] = strategy
    parts["accelerator"] = _live(parts["accelerator"])
    parts["cluster_environment"] = _live(parts["cluster_environment"], environ=request.environ)
    return attrs.evolve(plan, parts=parts)


def _part(kind: str, choice: Choice, request: Request, given: Any) -> Any:
    word = given.get(kind, getattr(request, kind))
    if not isinstance(word, str):
        return word
    if choice.target is None:
        return Registry.read(request.environ).find(kind, choice.name)[0]
    spec = getattr(specs, KINDS[kind].spec)
    return spec(name=choice.name, target=choice.target, init_args=choice.init_args)


def _live(part: Any, **more: Any) -> Any:
    if not isinstance(part, specs.BackendSpec):
        return part
    live = load(part)(**more, **part.init_args)
    live.name = part.name
    return live
