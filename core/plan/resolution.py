"""Resolution: Request + registry + what the hardware says -> Plan. Nothing after it decides again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import attrs
import torch

from core.accelerators.base import Accelerator
from core.accelerators.devices import parse_devices
from core.discovery.loading import describe, import_target
from core.discovery.registry import Registry
from core.environments.base import ClusterEnvironment
from core.environments.local import LAUNCHED
from core.errors import BackendError, ConfigurationError, DeviceError, UnknownNameError, quoted
from core.plan.candidates import choose_accelerator, outranked, unusable
from core.plan.capabilities import check_able, check_eager
from core.plan.construction import construct
from core.plan.launched import take_launched
from core.plan.model import Choice, PassedOver, Plan
from core.plan.process_group import check_process_group_backend
from core.plan.request import WORDS, Request, Word, checked
from core.specs import AcceleratorSpec, BackendSpec, ClusterEnvironmentSpec, StrategySpec
from core.strategies.base import Strategy

__all__ = ["resolve"]

logger = logging.getLogger(__name__)

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
        self.words = {name: request.word(name) for name in WORDS}
        self.choices: dict[str, Choice] = {}
        self.specs: dict[str, Any] = {}
        """By kind, what a choice was made from; nothing for an object that the user gave."""
        self.parts: dict[str, Any] = {}
        """By kind, the live object."""

    def plan(self) -> Plan:
        if not self.words["strategy"].is_auto:
            self._choose("strategy")
            self._take_parts_of_strategy()
        environment = self._choose_environment()
        accelerator = self._choose_accelerator()
        devices, devices_reason = self._choose_devices(accelerator, environment)
        num_nodes, num_nodes_reason = self._choose_num_nodes(environment)
        if "strategy" not in self.choices:
            self._choose_default_strategy(accelerator, several=len(devices) * num_nodes > 1)
            self._take_parts_of_strategy()
        strategy: Strategy = self.parts["strategy"]
        processes = 1 if strategy.one_process_per_node else len(devices)
        environment.validate_settings(processes, num_nodes)
        world_size = processes * num_nodes
        for kind, default in DEFAULTS.items():
            self._choose(kind, default)
        self._check_served(strategy, world_size)
        check_able(accelerator, self.parts["precision"], self.choices["precision"].name, world_size)
        if not self._is_for(strategy):
            check_eager(accelerator, self.choices["strategy"].name)
        process_group_backend, process_group_reason = self._choose_process_group(strategy, accelerator, devices[0])
        return Plan(
            request=self.request.describe(),
            **self.choices,
            devices=tuple(str(device) for device in devices),
            devices_reason=devices_reason,
            num_nodes=num_nodes,
            num_nodes_reason=num_nodes_reason,
            world_size=world_size,
            launcher=self._launcher(strategy, environment, processes),
            process_group_backend=process_group_backend,
            process_group_reason=process_group_reason,
            parts=self.parts,
        )

    # -- any kind ------------------------------------------------------------------------------------------------

    def _choose(self, kind: str, default: str = "") -> None:
        word = self.words[kind]
        if not word.is_auto and not isinstance(word.value, str):
            self._take_object(word)
            return
        name, reason = (default, "no other was asked for") if word.is_auto else (word.value, word.said)
        spec, *others = self.registry.find(kind, name, argument=word.label)
        self._take(spec, reason, [outranked(other, spec) for other in others])

    def _take_object(self, word: Word) -> None:
        self.parts[word.name] = word.value
        self.choices[word.name] = Choice(name=_name(word.value), reason=word.said, origin="this process")

    def _take(self, spec: BackendSpec, reason: str, passed_over: Sequence[PassedOver] = ()) -> None:
        more = {"environ": self.request.environ} if spec.kind == "cluster_environment" else {}
        self.specs[spec.kind] = spec
        self.parts[spec.kind] = construct(spec, self.registry.load(spec), **more)
        self.choices[spec.kind] = Choice.of(spec, reason, self.registry.origin(spec), passed_over)

    # -- the strategy --------------------------------------------------------------------------------------------

    def _take_parts_of_strategy(self) -> None:
        """What was given to the strategy counts as the user's word, and must not contradict another."""
        for kind, value in self.parts["strategy"].given.items():
            given, word = Word(kind, value, "strategy"), self.words[kind]
            given = attrs.evolve(given, value=checked(given))
            if given.is_auto:
                continue
            if kind in self.parts:
                word = attrs.evolve(word, value=self.parts[kind])
            elif word.source != "argument":  # an argument, be it the strategy's, goes before the environment
                self.words[kind] = given
                continue
            if not self._same(word, given):
                raise ConfigurationError(
                    f"{word} contradicts {given} of strategy {self.choices['strategy'].name!r}. Valid: one of the two, "
                    "or the same in both."
                )
            if not isinstance(given.value, str):  # of the same in both, an object says more
                self.words[kind] = given

    def _same(self, one: Word, other: Word) -> bool:
        if isinstance(one.value, str) or isinstance(other.value, str):
            return not self._names(one).isdisjoint(self._names(other))
        return one.value is other.value

    def _names(self, word: Word) -> set[str]:
        if not isinstance(word.value, str):
            return {_name(word.value)}
        try:
            return {word.value} | {spec.name for spec in self.registry.find(word.name, word.value)}
        except UnknownNameError:  # it may be the name of a device type that torch reports
            return {word.value}

    def _choose_default_strategy(self, accelerator: Accelerator, *, several: bool) -> None:
        argument = "default_parallel_strategy" if several else "default_strategy"
        spec: AcceleratorSpec | None = self.specs.get("accelerator")
        name = getattr(spec, argument, None) or getattr(accelerator, argument)
        found = self.registry.find("strategy", name, argument=f"{accelerator.name}'s {argument}")[0]
        self._take(found, f"it is {accelerator.name}'s default for {'several processes' if several else 'one process'}")

    def _check_served(self, strategy: Strategy, world_size: int) -> None:
        name, accelerator = self.choices["strategy"].name, self.choices["accelerator"].name
        precision = self.choices["precision"].name
        spec: StrategySpec | None = self.specs.get("strategy")
        for facts in (strategy, spec) if spec is not None else (strategy,):
            if facts.accelerators is not None and accelerator not in facts.accelerators:
                raise ConfigurationError(
                    f"strategy={name!r} does not serve accelerator {accelerator!r}. Valid accelerators: "
                    f"{quoted(facts.accelerators)}."
                )
            if facts.precisions is not None and precision not in facts.precisions:
                raise ConfigurationError(
                    f"strategy={name!r} does not serve precision {precision!r}. Valid precisions: "
                    f"{quoted(facts.precisions)}."
                )
            low, high = facts.min_processes, facts.max_processes
            if world_size < low or (high is not None and world_size > high):
                valid = f"{low} or more" if high is None else str(low) if low == high else f"{low} to {high}"
                raise ConfigurationError(
                    f"strategy={name!r}: {self.words['devices']} and {self.words['num_nodes']} give {world_size} "
                    f"process(es). Valid: {valid}."
                )

    def _is_for(self, strategy: Strategy) -> bool:
        """Whether the strategy names the accelerator as one that it serves, not only all of them."""
        spec: StrategySpec | None = self.specs.get("strategy")
        named = (*(strategy.accelerators or ()), *((spec.accelerators or ()) if spec is not None else ()))
        return self.choices["accelerator"].name in named

    def _launcher(self, strategy: Strategy, environment: ClusterEnvironment, processes: int) -> str | None:
        if processes == 1 or environment.creates_processes_externally:
            return None
        if strategy.launcher is None:
            raise ConfigurationError(
                f"strategy={self.choices['strategy'].name!r}: it starts no processes, nobody else did, and "
                f"{self.words['devices']} gives {processes} on this machine. Valid: devices=1, "
                f"{strategy.started_by}, or a strategy that starts them, such as 'ddp'."
            )
        return strategy.launcher

    def _choose_process_group(
        self, strategy: Strategy, accelerator: Accelerator, device: torch.device
    ) -> tuple[str | None, str]:
        if not strategy.uses_process_group:
            return None, "the strategy joins none"
        given = getattr(strategy, "process_group_backend", None)
        if given is None:
            backend, reason = accelerator.process_group_backend(device), f"it is {accelerator.name}'s own"
        else:
            backend, reason = given, f"process_group_backend of the strategy says {given!r}"
        check_process_group_backend(backend, device)
        return backend, reason

    # -- the cluster environment ---------------------------------------------------------------------------------

    def _choose_environment(self) -> ClusterEnvironment:
        if not self.words["cluster_environment"].is_auto:
            self._choose("cluster_environment")
        else:
            self._detect_environment()
        environment: ClusterEnvironment = self.parts["cluster_environment"]
        return environment

    def _detect_environment(self) -> None:
        chosen: BackendSpec | None = None
        passed_over = unusable("cluster_environment", self.registry)
        for spec in sorted(self.registry.specs("cluster_environment"), key=lambda spec: (-spec.priority, spec.name)):
            if chosen is not None:
                passed_over.append(outranked(spec, chosen))
            elif (reason := self._not_started_by(spec)) is None:
                chosen = spec
            else:
                passed_over.append(PassedOver(spec.name, reason))
        if chosen is None:
            reasons = "; ".join(f"{other.name}: {other.reason}" for other in passed_over)
            raise BackendError(
                f"cluster_environment='auto': none that is installed can say who this process is ({reasons}). Valid: "
                "an environment by name, or to mend what keeps 'local' from being used."
            )
        self._take(chosen, "it is by priority the first that knows how this process was started", passed_over)

    def _not_started_by(self, spec: Any) -> str | None:
        environment_spec: ClusterEnvironmentSpec = spec
        try:
            detect = environment_spec.detect
            answer = import_target(detect) if detect else self.registry.load(spec).detect
            return None if answer(self.request.environ) else "did not start this process"
        except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin's function may raise anything; it is shown
            logger.warning("cluster environment %r is passed over: %s", spec.name, describe(error))
            return f"cannot tell whether it started this process: {describe(error)}"

    # -- the accelerator and its devices -------------------------------------------------------------------------

    def _choose_accelerator(self) -> Accelerator:
        word = self.words["accelerator"]
        if isinstance(word.value, Accelerator):
            self._take_object(word)
            self._check_present(word)
            return word.value
        choice, accelerator, spec = choose_accelerator(word, self.registry)
        self.choices["accelerator"], self.parts["accelerator"], self.specs["accelerator"] = choice, accelerator, spec
        return accelerator

    def _check_present(self, word: Word) -> None:
        try:
            is_available = word.value.is_available()
        except Exception as error:  # a vendor's class may raise anything; it is the cause shown
            raise BackendError(f"{word}: is_available() raises {describe(error)}.") from error
        if not is_available:
            raise BackendError(f"{word}: no device is there. Valid: 'auto', or an accelerator that is present.")

    def _choose_devices(
        self, accelerator: Accelerator, environment: ClusterEnvironment
    ) -> tuple[list[torch.device], str]:
        word = self.words["devices"]
        value, limit = word.value, accelerator.device_limit()
        everything = value == -1 if isinstance(value, Integral) else str(value).strip() in ("auto", "-1")
        started = environment.creates_processes_externally
        strategy: Strategy | None = self.parts.get("strategy")
        if everything and started and not (strategy is not None and strategy.one_process_per_node):
            value = environment.local_world_size
            reason = f"{environment.name} started {value} process(es) on this machine"
        elif word.is_auto:
            reason = (
                "no number was asked for, so one process"
                if limit is None
                else "no number was asked for, so all there are"
            )
        else:
            reason = word.said
        try:
            indices = parse_devices(
                value,
                all_devices=accelerator.auto_device_count(),
                limit=limit,
                accelerator=accelerator.name,
                pick=None if started else accelerator.pick_devices,
            )
        except DeviceError as error:
            if value is word.value and word.label == "devices":
                raise
            raise DeviceError(f"{reason}: {error}") from error
        accelerator.import_backend()
        devices = accelerator.get_parallel_devices(accelerator.parse_devices(indices))
        if not devices or not all(isinstance(device, torch.device) for device in devices):
            raise DeviceError(
                f"{word}: accelerator {accelerator.name!r} gave {devices!r} for it. Valid: a list of torch.device, one "
                "for each process."
            )
        return list(devices), reason

    def _choose_num_nodes(self, environment: ClusterEnvironment) -> tuple[int, str]:
        word = self.words["num_nodes"]
        if not word.is_auto:
            return word.value, word.said
        if environment.creates_processes_externally:
            return environment.num_nodes, f"{environment.name} says so"
        return 1, "no other number was asked for"


def _name(part: Any) -> str:
    return getattr(part, "name", "") or type(part).__name__
