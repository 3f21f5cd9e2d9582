"""The Plan: the frozen answer to "what will run, on what, and why"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["Choice", "PassedOver", "Plan"]

FORMAT = 1


@attrs.frozen
class PassedOver:
    """A candidate that was not chosen."""

    name: str
    reason: str


@attrs.frozen(kw_only=True)
class Choice:
    """One decision of the Plan."""

    name: str
    """The backend chosen."""
    reason: str
    """Why."""
    origin: str = ""
    """The distribution and version it came from; ``this process`` where it was registered or given in code."""
    passed_over: tuple[PassedOver, ...] = ()
    """Every other candidate, with the reason."""
    target: str | None = attrs.field(default=None, repr=False)
    """``"module:Class"``, for processes that are started; ``None`` where they must find it in their own code."""
    init_args: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """What the class is called with."""


@attrs.frozen(kw_only=True)
class Plan:
    """What will run, on what, and why; made by :func:`core.plan.resolve` and by nothing else."""

    request: Mapping[str, Any]
    """The user's words, as plain data."""
    accelerator: Choice
    strategy: Choice
    precision: Choice
    checkpoint_io: Choice
    cluster_environment: Choice
    devices: tuple[str, ...]
    """The devices of one machine's processes, by local rank: ``("cpu", "cpu")``."""
    devices_reason: str
    num_nodes: int
    world_size: int
    launcher: str | None
    """How the strategy will start processes: ``script``, ``spawn``, ``fork``; ``None`` where it need not."""
    process_group_backend: str | None
    """The ``torch.distributed`` backend; ``None`` where no process group is joined."""
    parts: Mapping[str, Any] = attrs.field(factory=dict, repr=False, eq=False)
    """By kind: the spec or the object itself. Of this process only; not in the JSON."""

    def choices(self) -> dict[str, Choice]:
        """The five choices by kind."""
        return {kind: getattr(self, kind) for kind in _KINDS}

    def to_dict(self) -> dict[str, Any]:
        """The Plan as plain data."""
        data = attrs.asdict(self, filter=lambda attribute, _: attribute.name != "parts")
        data["devices"] = list(self.devices)
        for kind, choice in self.choices().items():
            data[kind]["passed_over"] = [attrs.asdict(candidate) for candidate in choice.passed_over]
            if not all(isinstance(value, _PLAIN) for value in choice.init_args.values()):
                data[kind].update(target=None, init_args={})
        data["request"] = dict(self.request)
        return {"format": FORMAT, **data}

    def to_json(self, indent: int | None = None) -> str:
        """The Plan as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The Plan that :meth:`to_json` wrote; without ``parts``."""
        data = json.loads(text)
        del data["format"]
        for kind in _KINDS:
            choice = data[kind]
            choice["passed_over"] = tuple(PassedOver(**candidate) for candidate in choice["passed_over"])
            data[kind] = Choice(**choice)
        data["devices"] = tuple(data["devices"])
        return cls(**data)

    def __str__(self) -> str:
        return render(self)


_KINDS = ("accelerator", "strategy", "precision", "checkpoint_io", "cluster_environment")
_PLAIN = (str, int, float, bool, type(None))


def render(plan: Plan) -> str:
    """The Plan for a reader: each choice with its reason, each candidate passed over with its reason."""
    lines = []
    for kind, choice in plan.choices().items():
        origin = f"  [{choice.origin}]" if choice.origin else ""
        lines.append(f"{kind.replace('_', ' '):<20} {choice.name}{origin}")
        lines.append(f"{'':<20}   because {choice.reason}")
        lines += [f"{'':<20}   not {other.name}: {other.reason}" for other in choice.passed_over]
    per_machine = f"on each of {plan.num_nodes} machines" if plan.num_nodes > 1 else "on this machine"
    lines.append(f"{'devices':<20} {', '.join(plan.devices)} {per_machine}")
    lines.append(f"{'':<20}   because {plan.devices_reason}")
    lines.append(f"{'processes':<20} {plan.world_size}{_how(plan)}")
    if plan.process_group_backend:
        lines.append(f"{'collectives':<20} {plan.process_group_backend}")
    return "\n".join(lines)


def _how(plan: Plan) -> str:
    how = {"script": "this script, started once more for each further one", "spawn": "spawned", "fork": "forked"}
    return f", {how[plan.launcher]}" if plan.launcher else ""
