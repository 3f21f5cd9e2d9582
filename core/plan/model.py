"""The Plan: the frozen answer to "what will run, on what, and why"."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from core.errors import ConfigurationError
from core.specs import BackendSpec

__all__ = ["Choice", "PassedOver", "Plan"]

FORMAT = 1
WIDTH = 80


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

    @classmethod
    def of(cls, spec: BackendSpec, reason: str, origin: str, passed_over: Sequence[PassedOver] = ()) -> Choice:
        """The choice of what ``spec`` describes."""
        target, init_args = spec.target, dict(spec.init_args)
        if not isinstance(target, str) or not all(isinstance(value, _PLAIN) for value in init_args.values()):
            target, init_args = None, {}
        return cls(
            name=spec.name,
            reason=reason,
            origin=origin,
            passed_over=tuple(passed_over),
            target=target,
            init_args=init_args,
        )


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
    """The devices of one machine: ``("cpu", "cpu")``; one for each process by local rank, or all of one process's."""
    devices_reason: str
    num_nodes: int
    num_nodes_reason: str
    world_size: int
    launcher: str | None
    """How the strategy will start processes, as in :attr:`core.Strategy.launcher`; ``None`` where it need not."""
    process_group_backend: str | None
    """The ``torch.distributed`` backend; ``None`` where no process group is joined."""
    process_group_reason: str
    """Why that one, or none."""
    parts: Mapping[str, Any] = attrs.field(factory=dict, repr=False, eq=False)
    """By kind: the live object. Of this process only; not in the JSON."""

    @property
    def runs_function(self) -> bool:
        """Whether the strategy runs a function in processes that it starts, rather than this script."""
        return self.launcher not in (None, "script")

    def choices(self) -> dict[str, Choice]:
        """The five choices by kind."""
        return {kind: getattr(self, kind) for kind in _KINDS}

    def to_dict(self) -> dict[str, Any]:
        """The Plan as plain data."""
        data = attrs.asdict(self, filter=lambda attribute, _: attribute.name != "parts")
        data["devices"] = list(self.devices)
        for kind in _KINDS:
            data[kind]["passed_over"] = list(data[kind]["passed_over"])
        return {"format": FORMAT, **data}

    def to_json(self, indent: int | None = None) -> str:
        """The Plan as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The Plan that :meth:`to_json` wrote; without ``parts``.

        Raises:
            ConfigurationError: ``text`` is no such JSON.
        """
        try:
            data = json.loads(text)
            if data.pop("format") != FORMAT:
                raise ValueError(f"format is not {FORMAT}")
            for kind in _KINDS:
                choice = data[kind]
                choice["passed_over"] = tuple(PassedOver(**candidate) for candidate in choice["passed_over"])
                data[kind] = Choice(**choice)
            data["devices"] = tuple(data["devices"])
            return cls(**data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"text={text[:99]!r}: no Plan as JSON ({error}). Valid: what to_json gave."
            ) from error

    def __str__(self) -> str:
        return render(self)


_KINDS = ("accelerator", "strategy", "precision", "checkpoint_io", "cluster_environment")
_PLAIN = (str, int, float, bool, type(None))


def render(plan: Plan) -> str:
    """The Plan for a reader: each choice with its reason, each candidate passed over with its reason."""
    lines: list[str] = []
    for kind, choice in plan.choices().items():
        origin = f"  [{choice.origin}]" if choice.origin else ""
        lines += _entry(kind.replace("_", " "), choice.name + origin, choice.reason, choice.passed_over)
    lines += _entry("devices", ", ".join(plan.devices), plan.devices_reason)
    lines += _entry("machines", str(plan.num_nodes), plan.num_nodes_reason)
    lines += _wrapped(f"{'processes':<20} ", f"{plan.world_size}{_how(plan)}")
    lines += _entry("process group", plan.process_group_backend or "none", plan.process_group_reason)
    return "\n".join(lines)


def _entry(label: str, value: str, reason: str, passed_over: Sequence[PassedOver] = ()) -> list[str]:
    lines = _wrapped(f"{label:<20} ", value) + _wrapped(_BELOW, f"because {reason}")
    for other in passed_over:
        lines += _wrapped(_BELOW, f"not {other.name}: {other.reason}")
    return lines


_BELOW = " " * 23


def _wrapped(start: str, text: str) -> list[str]:
    below = " " * (len(start) + 2)
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=below, break_on_hyphens=False)


def _how(plan: Plan) -> str:
    how = {"script": "this script, started once more for each further one", "spawn": "spawned", "fork": "forked"}
    return f", {how.get(plan.launcher, plan.launcher)}" if plan.launcher else ""
