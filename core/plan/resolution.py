"""Resolution: Request + registry + what the hardware says -> Plan. Nothing after it decides again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch

from core.accelerators.base import Accelerator
from core.accelerators.devices import parse_devices
from core.discovery.loading import import_target
from core.discovery.registry import Registry
from core.environments.base import ClusterEnvironment
from core.environments.detect import TORCHRUN_VARIABLES
from core.environments.local import LAUNCHED, LocalEnvironment
from core.errors import BackendError, ConfigurationError, DeviceError
from core.plan.candidates import choose_accelerator
from core.plan.launched import take_launched
from core.plan.model import Choice, PassedOver, Plan
from core.plan.request import Request, describe
from core.specs import AcceleratorSpec, BackendSpec, StrategySpec
from core.strategies.base import Strategy

__all__ = ["resolve"]

PARTS = {
    "accelerator": "accelerator",
    "cluster_environment": "cluster_environment",
    "checkpoint_io": "checkpoint_io",
    "precision": "precision_plugin",
}
"""By kind: the strategy's constructor argument that gives a part of that kind."""

DEFAULTS = {"precision": "32-true", "checkpoint_io": "torch"}


def resolve(request: Request, registry: Registry | None = None) -> Plan:
    """The Plan that ``request`` means here.

    Args:
        request: The user's words.
        registry: What is installed and registered; read from this process where not given.

    Raises:
        CoreError: A word is unknown, of the wrong kind, contradicted, or names what cannot be used here. No process has
            been started by then.
    """
    if LAUNCHED in request.environ:
        taken = take_launched(request)
        if taken is not None:
            return taken
    return _Resolution(request, registry or Registry.read(request.environ)).plan()


class _Resolution:
    """One resolution: the words as they get settled, and what was chosen for each kind so far."""

    def __init__(self, request: Request, registry: Registry) -> None:
        self.request = request
        self.registry = registry
        self.words = {kind: getattr(request, kind) for kind in (*PARTS, "strategy")}
        self.sources = dict(request.sources)
        self.choices: dict[str, Choice] = {}
        self.parts: dict[str, Any] = {}
        self.default_strategies: AcceleratorSpec | Accelerator

    def plan(self) -> Plan:
        if not self.request.is_open("strategy"):
            self._choose_named("strategy")
            self._take_parts_of_strategy()
        self._choose_environment()
        accelerator = self._choose_accelerator()
        environment = self._environment()
        indices, devices, devices_reason = self._choose_devices(accelerator, environment)
        num_nodes = self._num_nodes(environment)
        world_size = len(devices) * num_nodes
        environment.connect(len(devices), num_nodes)
        if "strategy" not in self.choices:
            self._choose_default_strategy(accelerator, world_size)
        for kind, default in DEFAULTS.items():
            self._choose_named(kind, default)
        facts = _strategy_facts(self.parts["strategy"], self.registry)
        self._check_served(facts, world_size)
        starts_processes = len(devices) > 1 and not environment.creates_processes_externally
        return Plan(
            request=self.request.describe(),
            **self.choices,
            devices=tuple(str(device) for device in devices),
            devices_reason=devices_reason,
            num_nodes=num_nodes,
            world_size=world_size,
            launcher=facts.launcher if starts_processes else None,
            process_group_backend=self._process_group_backend(facts, accelerator, devices[0]),
            parts={**self.parts, "accelerator": accelerator, "cluster_environment": environment},
        )

    # -- one kind each -------------------------------------------------------------------------------------------

    def _choose_named(self, kind: str, default: str = "") -> None:
        word, source = self.words[kind], self.sources[kind]
        if isinstance(word, str) and word == "auto":
            word, reason = default, "no other was asked for"
        else:
            reason = f"{_who(source)} says {describe(word)!r}"
        if not isinstance(word, str):
            self._choose_object(kind, word, reason)
            return
        spec, *others = self.registry.find(kind, word)
        passed_over = tuple(PassedOver(o.name, f"priority {o.priority} is below {spec.name}'s") for o in others)
        self._take(kind, spec, reason, passed_over)

    def _choose_object(self, kind: str, part: Any, reason: str) -> None:
        name = getattr(part, "name", "") or type(part).__name__
        self.parts[kind] = part
        self.choices[kind] = Choice(name=name, reason=reason, origin="this process")

    def _take(self, kind: str, spec: BackendSpec, reason: str, passed_over: tuple[PassedOver, ...] = ()) -> None:
        self.parts[kind] = spec
        self.choices[kind] = Choice(
            name=spec.name,
            reason=reason,
            origin=self.registry.origin(spec),
            passed_over=passed_over,
            target=spec.target if isinstance(spec.target, str) else None,
            init_args=dict(spec.init_args),
        )

    def _take_parts_of_strategy(self) -> None:
        """What was given to the strategy counts as the user's word, and must not contradict another."""
        strategy = self.parts["strategy"]
        if isinstance(strategy, Strategy):
            given: Mapping[str, Any] = strategy.given
        else:
            given = {kind: strategy.init_args[name] for kind, name in PARTS.items() if name in strategy.init_args}
        for kind, part in given.items():
            word = self.words[kind]
            is_open = isinstance(word, str) and word == "auto"
            if not is_open and self.sources[kind] == "argument" and not self._same(kind, word, part):
                raise ConfigurationError(
                    f"{kind}={describe(word)!r} contradicts {PARTS[kind]}={describe(part)!r} given to strategy "
                    f"{self.choices['strategy'].name!r}. Valid: one of the two, or the same in both."
                )
            self.words[kind], self.sources[kind] = part, "strategy"

    def _same(self, kind: str, one: Any, other: Any) -> bool:
        if one is other:
            return True
        names = [self.registry.find(kind, word)[0].name if isinstance(word, str) else word.name for word in (one, other)]
        return names[0] == names[1] and (isinstance(one, str) or isinstance(other, str))

    def _choose_environment(self) -> None:
        if not (isinstance(self.words["cluster_environment"], str) and self.words["cluster_environment"] == "auto"):
            self._choose_named("cluster_environment")
            return
        if LAUNCHED in self.request.environ:
            # The launcher set the variables that torchrun sets as well; whose they are is known.
            (spec,) = self.registry.find("cluster_environment", LocalEnvironment.name)
            self._take("cluster_environment", spec, "an earlier run of this script started this process")
            return
        specs = sorted(self.registry.specs("cluster_environment"), key=lambda spec: (-spec.priority, spec.name))
        passed_over = [PassedOver(row.name, row.reason) for row in self.registry.failures("cluster_environment")]
        for spec in specs:
            if "cluster_environment" in self.choices:
                passed_over.append(PassedOver(spec.name, "asked only where nothing else started this process"))
            elif self._started_by(spec):
                self._take("cluster_environment", spec, "this process was started by it" if spec.priority else "")
            else:
                passed_over.append(PassedOver(spec.name, "did not start this process"))
        chosen = self.choices.get("cluster_environment")
        if chosen is None:
            raise BackendError("cluster_environment='auto': none that is installed can say who this process is.")
        if chosen.name == LocalEnvironment.name:
            self._refuse_unused_ranks(chosen)
            chosen = attrs.evolve(chosen, reason="no launcher started this process")
        self.choices["cluster_environment"] = attrs.evolve(chosen, passed_over=tuple(passed_over))

    def _started_by(self, spec: Any) -> bool:
        answer = import_target(spec.detect) if spec.detect else self.registry.load(spec).detect
        return bool(answer(self.request.environ))

    def _refuse_unused_ranks(self, chosen: Choice) -> None:
        environ = self.request.environ
        alone = environ.get("WORLD_SIZE", "1") == "1" and environ.get("RANK", "0") == "0"
        if alone or LAUNCHED in environ:
            return
        given = ", ".join(f"{name}={environ[name]}" for name in TORCHRUN_VARIABLES if name in environ)
        missing = ", ".join(name for name in TORCHRUN_VARIABLES if name not in environ)
        raise ConfigurationError(
            f"environment variables {given}: they say that this is one of several processes, but no installed cluster "
            f"environment can use them ({missing} not set). Valid: all of {', '.join(TORCHRUN_VARIABLES)} (torchrun sets "
            f"them), or neither RANK nor WORLD_SIZE."
        )

    def _environment(self) -> ClusterEnvironment:
        part = self.parts["cluster_environment"]
        if isinstance(part, ClusterEnvironment):
            return part
        environment: ClusterEnvironment = self.registry.load(part)(environ=self.request.environ, **part.init_args)
        return environment

    def _choose_accelerator(self) -> Accelerator:
        word, source = self.words["accelerator"], self.sources["accelerator"]
        if isinstance(word, Accelerator):
            self._choose_object("accelerator", word, f"{_who(source)} gives the object {describe(word)}")
            if not word.is_available():
                raise BackendError(f"accelerator={describe(word)!r}: it says that no device is there.")
            self.default_strategies = word
            return word
        choice, accelerator, self.default_strategies = choose_accelerator(word, _who(source), self.registry)
        self.choices["accelerator"] = choice
        return accelerator

    def _choose_devices(
        self, accelerator: Accelerator, environment: ClusterEnvironment
    ) -> tuple[list[int], list[torch.device], str]:
        words: Any = self.request.devices
        reason = f"{_who(self.sources['devices'])} says {words!r}"
        if environment.creates_processes_externally and self.request.is_open("devices"):
            words = environment.local_world_size
            reason = f"{environment.name} started {words} process(es) on this machine"
        elif self.request.is_open("devices"):
            reason = "all there are" if accelerator.device_limit() is not None else "one process"
        indices = parse_devices(
            words,
            all_devices=accelerator.auto_device_count(),
            limit=accelerator.device_limit(),
            accelerator=accelerator.name,
        )
        devices = accelerator.get_parallel_devices(accelerator.parse_devices(indices))
        if not devices or not all(isinstance(device, torch.device) for device in devices):
            raise DeviceError(
                f"devices={words!r}: accelerator {accelerator.name!r} gave {devices!r} for them. Valid: a list of "
                "torch.device, one for each process."
            )
        return indices, list(devices), reason

    def _num_nodes(self, environment: ClusterEnvironment) -> int:
        asked = self.request.num_nodes
        if isinstance(asked, int):
            return asked
        return environment.num_nodes if environment.creates_processes_externally else 1

    def _choose_default_strategy(self, accelerator: Accelerator, world_size: int) -> None:
        several = world_size > 1
        defaults = self.default_strategies
        name = defaults.default_parallel_strategy if several else defaults.default_strategy
        spec = self.registry.find("strategy", name)[0]
        self._take("strategy", spec, f"{accelerator.name}'s default for {'several processes' if several else 'one process'}")

    def _check_served(self, facts: _StrategyFacts, world_size: int) -> None:
        name, accelerator = self.choices["strategy"].name, self.choices["accelerator"].name
        if facts.accelerators is not None and accelerator not in facts.accelerators:
            raise ConfigurationError(
                f"strategy={name!r} does not serve accelerator {accelerator!r}. Valid accelerators: "
                f"{', '.join(facts.accelerators)}."
            )
        low, high = facts.min_processes, facts.max_processes
        if world_size < low or (high is not None and world_size > high):
            valid = f"{low} or more" if high is None else str(low) if low == high else f"{low} to {high}"
            raise ConfigurationError(
                f"strategy={name!r} serves {valid} process(es), but devices={self.request.devices!r} and "
                f"num_nodes={self.request.num_nodes!r} give {world_size}."
            )

    def _process_group_backend(
        self, facts: _StrategyFacts, accelerator: Accelerator, device: torch.device
    ) -> str | None:
        if not facts.uses_process_group:
            return None
        return facts.process_group_backend or accelerator.process_group_backend(device)


@attrs.frozen
class _StrategyFacts:
    """What resolution must know of a strategy, be it a spec or an object."""

    accelerators: tuple[str, ...] | None
    min_processes: int
    max_processes: int | None
    launcher: str | None
    uses_process_group: bool
    process_group_backend: str | None


def _strategy_facts(part: StrategySpec | Strategy, registry: Registry) -> _StrategyFacts:
    if isinstance(part, Strategy):
        cls: Any = type(part)
        backend = getattr(part, "process_group_backend", None)
    else:
        cls = registry.load(part)
        backend = part.init_args.get("process_group_backend")
    return _StrategyFacts(
        accelerators=part.accelerators,
        min_processes=part.min_processes,
        max_processes=part.max_processes,
        launcher=part.launcher,
        uses_process_group=cls.uses_process_group,
        process_group_backend=backend,
    )


def _who(source: str) -> str:
    return {"argument": "the argument", "strategy": "the strategy's argument", "default": "the default"}.get(source, source)
