"""The Plan: the frozen answer to "what will run, on what, and why"."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..errors import ConfigurationError, harmless, shortened
from ..kinds import KINDS
from ..specs import BackendSpec

FORMAT = 1
WIDTH = 80

LONGEST_INIT_ARGS = 8192
"""Characters of JSON that a started process is sent of one backend's constructor arguments."""


@attrs.frozen
class Rejected:
    """A backend that was considered and not chosen."""

    name: str = attrs.field(converter=harmless)
    """The backend's name."""
    reason: str = attrs.field(converter=shortened)
    """Why it was not chosen, in at most 300 characters."""


@attrs.frozen(kw_only=True)
class Choice:
    """The backend chosen for one kind."""

    name: str
    """The backend's name."""
    reason: str = attrs.field(converter=shortened)
    """Why it was chosen, in at most 300 characters; empty in a process that received its Plan."""
    origin: str = ""
    """The distribution and version it comes from; ``this process`` if it was registered or passed in code."""
    rejected: tuple[Rejected, ...] = ()
    """The other candidates; empty in a process that received its Plan."""
    target: str | None = attrs.field(default=None, repr=False)
    """The class, as ``"module:Class"``. ``None`` if a started process has to look the backend up by name: its class
    or arguments exist only in the user's code."""
    init_args: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """The arguments that the class is called with."""

    @classmethod
    def of(cls, spec: BackendSpec, reason: str, origin: str, rejected: Sequence[Rejected] = ()) -> Choice:
        """The choice of the backend that ``spec`` describes."""
        target, init_args = spec.target, dict(spec.init_args)
        if not isinstance(target, str) or not all(isinstance(value, _PLAIN) for value in init_args.values()):
            target, init_args = None, {}
        return cls(
            name=spec.name,
            reason=reason,
            origin=origin,
            rejected=tuple(rejected),
            target=target,
            init_args=init_args,
        )

    def for_ranks(self) -> Choice:
        """This choice as a started process receives it; see :meth:`Plan.for_ranks`."""
        short = attrs.evolve(self, reason="", rejected=())
        is_long = len(json.dumps(dict(self.init_args))) > LONGEST_INIT_ARGS
        return attrs.evolve(short, target=None, init_args={}) if is_long else short


@attrs.frozen(kw_only=True)
class Plan:
    """What will run, on what, and why. :func:`core.plan.resolve` makes it; nothing decides again after that."""

    request: Mapping[str, Any]
    """The user's arguments as plain data: what this Plan is the answer to."""
    accelerator: Choice
    """The hardware."""
    strategy: Choice
    """How the model is spread over devices."""
    precision: Choice
    """The dtype policy."""
    checkpoint_io: Choice
    """The checkpoint format."""
    cluster_environment: Choice
    """The cluster environment, which provides each process with its ranks."""
    devices: tuple[str, ...]
    """The devices of one machine, such as ``("cpu", "cpu")``: one for each process, by local rank; or all devices of
    the one process, if it drives them all."""
    devices_reason: str = attrs.field(converter=shortened)
    """Why these devices."""
    num_nodes: int
    """Number of machines."""
    num_nodes_reason: str = attrs.field(converter=shortened)
    """Why this number of machines."""
    world_size: int
    """Number of processes on all machines."""
    launcher: str | None
    """How the strategy starts the processes: ``"script"`` runs the user's script again for each further process;
    ``"spawn"``, ``"fork"`` and others run a function in each. ``None`` if it starts none."""
    process_group_backend: str | None
    """The ``torch.distributed`` backend; ``None`` if the run has no process group."""
    process_group_reason: str = attrs.field(converter=shortened)
    """Why this backend, or none."""
    inexact_resume: str = attrs.field(default="", converter=shortened)
    """Why a resumed run does not equal one that was not interrupted; empty if it does, as everywhere if the device's
    random number generator can be read and set."""
    imports: tuple[str, ...] = ()
    """The modules that each process imports first."""
    parts: Mapping[str, Any] = attrs.field(factory=dict, repr=False, eq=False)
    """The live objects by kind. They belong to this process and are not in the JSON."""

    @property
    def runs_function(self) -> bool:
        """Whether the strategy runs a function in the processes that it starts, rather than the user's script."""
        return self.launcher not in (None, "script")

    @property
    def headline(self) -> str:
        """What runs on what, in one line: ``ddp on cpu:0-1, bf16-mixed``."""
        machines = f" on each of {self.num_nodes} machines" if self.num_nodes > 1 else ""
        return f"{self.strategy.name} on {_ranges(self.devices)}{machines}, {self.precision.name}"

    def choices(self) -> dict[str, Choice]:
        """The choices by kind."""
        return {kind: getattr(self, kind) for kind in KINDS}

    def for_ranks(self) -> Plan:
        """The part of this Plan that a started process receives: what to run, without the reasons.

        Reasons and rejected candidates stay behind, and so do constructor arguments of more than
        :data:`LONGEST_INIT_ARGS` characters: the process looks such a backend up by its name. So the Plan fits into an
        environment variable, whatever other plugins report.
        """
        choices: dict[str, Any] = {kind: choice.for_ranks() for kind, choice in self.choices().items()}
        return attrs.evolve(
            self,
            **choices,
            devices_reason="",
            num_nodes_reason="",
            process_group_reason="",
            parts={},
        )

    def to_dict(self) -> dict[str, Any]:
        """The Plan as plain data."""
        data = attrs.asdict(attrs.evolve(self, parts={}))
        del data["parts"]
        data["devices"], data["imports"] = list(self.devices), list(self.imports)
        for kind in KINDS:
            data[kind]["rejected"] = list(data[kind]["rejected"])
        return {"format": FORMAT, **data}

    def to_json(self, indent: int | None = None) -> str:
        """The Plan as JSON."""
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The Plan that :meth:`to_json` wrote, without ``parts``.

        Raises:
            ConfigurationError: ``text`` is not the JSON of a Plan.
        """
        try:
            data = json.loads(text)
            if data.pop("format") != FORMAT:
                raise ValueError(f"format is not {FORMAT}")
            for kind in KINDS:
                choice = data[kind]
                choice["rejected"] = tuple(Rejected(**candidate) for candidate in choice["rejected"])
                data[kind] = Choice(**choice)
            data["devices"], data["imports"] = tuple(data["devices"]), tuple(data.get("imports", ()))
            return cls(**data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"text is not the JSON of a Plan ({error}): {text[:99]!r}. Pass what Plan.to_json() returned."
            ) from error

    def __str__(self) -> str:
        return render(self)


def _ranges(devices: Sequence[str]) -> str:
    """``cuda:0-1``; devices without an index, such as those of a CPU, are numbered if there are several."""
    if len(devices) == 1:
        return devices[0]
    kind = devices[0].partition(":")[0]
    if len(set(devices)) == 1:
        return f"{kind}:0-{len(devices) - 1}"
    indices = [device.partition(":")[2] for device in devices]
    numbers = [int(index) if index.isdecimal() else -1 for index in indices]
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{kind}:{numbers[0]}-{numbers[-1]}"
    return f"{kind}:{','.join(indices)}"


_PLAIN = (str, int, float, bool, type(None))


def render(plan: Plan) -> str:
    """The Plan for a reader: each choice with its reason, and each rejected candidate with its reason."""
    lines: list[str] = []
    for entry in entries_of(plan):
        origin = f"  [{entry.origin}]" if entry.origin else ""
        lines += _wrapped(f"{entry.label:<20} ", entry.value + origin)
        lines += _wrapped(_BELOW, entry.reason) if entry.reason else []
        for other in entry.rejected:
            lines += _wrapped(_BELOW, f"not {other.name}: {other.reason}")
    if not any(choice.reason for choice in plan.choices().values()):
        lines += _wrapped("", _WITHOUT_REASONS)
    return "\n".join(lines)


_WITHOUT_REASONS = (
    "The process that started this run made these choices; for the reasons, print its Plan or run "
    "python -m core.explain with the same arguments."
)


@attrs.frozen
class Entry:
    """A decision of a Plan, as it is shown."""

    label: str
    value: str = attrs.field(converter=harmless)
    reason: str = ""
    origin: str = attrs.field(default="", converter=harmless)
    rejected: Sequence[Rejected] = ()


def entries_of(plan: Plan) -> list[Entry]:
    """The decisions in the order in which they are shown."""
    entries = [
        Entry(kind, choice.name, choice.reason, choice.origin, choice.rejected)
        for kind, choice in plan.choices().items()
    ]
    entries += [
        Entry("devices", ", ".join(plan.devices), plan.devices_reason),
        Entry("num_nodes", str(plan.num_nodes), plan.num_nodes_reason),
        Entry("processes", f"{plan.world_size}{_how(plan)}"),
        Entry("process group", plan.process_group_backend or "none", plan.process_group_reason),
    ]
    if plan.inexact_resume:
        entries.append(Entry("resuming", "not exact", plan.inexact_resume))
    return entries


_BELOW = " " * 23


def _wrapped(start: str, text: str) -> list[str]:
    below = " " * (len(start) + 2)
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=below, break_on_hyphens=False)


def _how(plan: Plan) -> str:
    how = {"script": "this script is started again for each further one", "spawn": "spawned", "fork": "forked"}
    return f" ({how.get(plan.launcher, f'started by {plan.launcher}')})" if plan.launcher else ""
