"""Resolution: Request + registry + hardware -> Plan. Nothing decides again after it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import attrs
import torch

from ..accelerators.base import Accelerator
from ..accelerators.devices import parse_devices
from ..discovery.loading import describe
from ..discovery.ranks import by_priority, claim_ranks_of, has_started
from ..discovery.registry import Registry
from ..environments.base import ClusterEnvironment
from ..environments.local import LAUNCHED
from ..errors import BackendError, ConfigurationError, DeviceError, UnknownNameError, harmless, quoted
from ..kinds import KINDS
from ..logging import follow_variable, get_logger
from ..specs import AcceleratorSpec, BackendSpec, StrategySpec
from ..strategies.base import Strategy
from ..utilities.user_modules import import_all
from .assembly import construct, take_launched
from .candidates import choose_accelerator, outranked, unusable
from .capabilities import check_able, check_eager, check_process_group_backend, warn_of_cores
from .model import Choice, Plan, Rejected
from .request import ARGUMENTS, Argument, Request, checked

logger = logging.getLogger(__name__)
messages = get_logger(__name__)
"""Of process 0 only."""

DEFAULTS = {kind.name: kind.default for kind in KINDS.values() if kind.default}
"""What ``"auto"`` means for the kinds that need no rule."""


def resolve(request: Request, registry: Registry | None = None) -> Plan:
    """Make the Plan for ``request`` on this machine. Starts no process.

    Args:
        request: The user's arguments.
        registry: What is installed and registered; by default read from this process.

    Raises:
        CoreError: An argument is unknown, has the wrong type, contradicts another, or names what cannot be used here.
    """
    follow_variable(request.environ)
    import_all(request.imports)
    if LAUNCHED in request.environ:
        taken = take_launched(request)
        if taken is not None:
            return taken
    resolution = _Resolution(request, registry or Registry.read(request.environ))
    if request.is_of_process:
        claim_ranks_of(resolution.environments)
    plan = resolution.plan()
    for variable in _RESTARTS:
        if (count := request.environ.get(variable, "0")) != "0":
            messages.info("restart %s of this run, as its launcher says in %s", count, variable)
    messages.info("the Plan:\n%s", plan)
    return plan


_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


class _Resolution:
    """One resolution: the arguments as they are settled, and what was chosen for each kind so far."""

    def __init__(self, request: Request, registry: Registry) -> None:
        self.request = request
        self.registry = registry
        self.environments = by_priority(registry.specs("cluster_environment"))
        self.arguments = {name: request.argument(name) for name in ARGUMENTS}
        self.choices: dict[str, Choice] = {}
        self.specs: dict[str, Any] = {}
        """By kind, what a choice was made from; nothing for an object that the user passed."""
        self.parts: dict[str, Any] = {}
        """By kind, the live object."""

    def plan(self) -> Plan:
        if not self.arguments["strategy"].is_auto:
            self._choose("strategy")
            self._take_parts_of_strategy()
        environment = self._choose_environment()
        accelerator = self._choose_accelerator()
        devices, devices_reason = self._choose_devices(accelerator, environment)
        num_nodes, num_nodes_reason = self._choose_num_nodes(environment)
        if "strategy" not in self.choices:
            self._choose_default_strategy(accelerator, is_parallel=len(devices) * num_nodes > 1)
            self._take_parts_of_strategy()
        strategy: Strategy = self.parts["strategy"]
        processes = 1 if strategy.one_process_per_node else len(devices)
        world_size = processes * num_nodes
        self._check_environment(environment, processes, num_nodes)
        for kind, default in DEFAULTS.items():
            self._choose(kind, getattr(strategy, f"default_{kind}", default))
        self._check_supported(strategy, accelerator, num_nodes, world_size)
        process_group_backend, process_group_reason = self._choose_process_group(strategy, accelerator, devices[0])
        return Plan(
            request=self.request.describe(),
            **self.choices,
            devices=tuple(str(device) for device in devices),
            devices_reason=devices_reason,
            num_nodes=num_nodes,
            num_nodes_reason=num_nodes_reason,
            world_size=world_size,
            launcher=self._choose_launcher(strategy, environment, processes, num_nodes),
            process_group_backend=process_group_backend,
            process_group_reason=process_group_reason,
            imports=self.request.imports,
            inexact_resume=self._inexact_resume(accelerator, devices[0]),
            parts=self.parts,
        )

    # -- any kind ------------------------------------------------------------------------------------------------

    def _choose(self, kind: str, default: str = "") -> None:
        argument = self.arguments[kind]
        if not argument.is_auto and not isinstance(argument.value, str):
            self._take_object(argument)
            return
        name, reason = (default, "the default") if argument.is_auto else (argument.value, argument.reason)
        spec, *others = self.registry.find(kind, name, argument=argument.label)
        self._take(spec, reason, [outranked(other, spec) for other in others])

    def _take_object(self, argument: Argument) -> None:
        self.parts[argument.name] = argument.value
        self.choices[argument.name] = Choice(name=_name(argument.value), reason=argument.reason, origin="this process")

    def _take(self, spec: BackendSpec, reason: str, rejected: Sequence[Rejected] = ()) -> None:
        more = {"environ": self.request.environ} if spec.kind == "cluster_environment" else {}
        origin, spec = self.registry.origin(spec), self.registry.complete(spec)
        self.specs[spec.kind] = spec
        self.parts[spec.kind] = construct(spec, self.registry.load(spec), **more)
        self.choices[spec.kind] = Choice.of(spec, reason, origin, rejected)

    # -- the strategy --------------------------------------------------------------------------------------------

    def _take_parts_of_strategy(self) -> None:
        """Parts that were passed to the strategy count as the user's arguments, and must not contradict others."""
        for kind, value in self.parts["strategy"].requested_parts.items():
            requested, argument = Argument(kind, value, "strategy"), self.arguments[kind]
            requested = attrs.evolve(requested, value=checked(requested))
            if requested.is_auto:
                continue
            if kind in self.parts:
                argument = attrs.evolve(argument, value=self.parts[kind])
            elif argument.source != "argument":  # arguments, also the strategy's, take precedence over the environment
                self.arguments[kind] = requested
                continue
            if not self._same(argument, requested):
                raise ConfigurationError(
                    f"{argument} contradicts {requested} of strategy {self.choices['strategy'].name!r}. Pass only one "
                    "of them, or the same value to both."
                )
            if not isinstance(requested.value, str):  # where both are the same, an object says more than a name
                self.arguments[kind] = requested

    def _same(self, one: Argument, other: Argument) -> bool:
        if isinstance(one.value, str) and isinstance(other.value, str):
            return not self._names(one).isdisjoint(self._names(other))
        if isinstance(one.value, str) or isinstance(other.value, str):
            name, part = (one, other) if isinstance(one.value, str) else (other, one)
            return _name(part.value) in self._names(name) or self._is_made_by(name, part)
        return one.value is other.value

    def _is_made_by(self, name: Argument, part: Argument) -> bool:
        """Whether ``part`` is an object of exactly the class that ``name`` means."""
        try:
            found = self.registry.find(name.name, name.value)
        except UnknownNameError:
            return False
        return any(not spec.init_args and self.registry.load(spec) is type(part.value) for spec in found)

    def _names(self, argument: Argument) -> set[str]:
        try:
            return {argument.value} | {spec.name for spec in self.registry.find(argument.name, argument.value)}
        except UnknownNameError:  # it may be a device type that torch reports
            return {argument.value}

    def _choose_default_strategy(self, accelerator: Accelerator, *, is_parallel: bool) -> None:
        count = "several processes" if is_parallel else "one process"
        found = self._default_strategy(accelerator, is_parallel=is_parallel)
        self._take(found, f"the default of accelerator {accelerator.name!r} for {count}")

    def _default_strategy(self, accelerator: Accelerator, *, is_parallel: bool) -> BackendSpec:
        attribute = "default_parallel_strategy" if is_parallel else "default_strategy"
        spec: AcceleratorSpec | None = self.specs.get("accelerator")
        name = getattr(spec, attribute, None) or getattr(accelerator, attribute)
        return self.registry.find("strategy", name, argument=f"{accelerator.name}.{attribute}")[0]

    def _takes_one_device(self, accelerator: Accelerator) -> bool:
        """Whether the processes of several devices could not exchange values, so that "auto" means one device."""
        if "collectives" not in accelerator.unsupported or "strategy" in self.parts:
            return False
        spec = self._default_strategy(accelerator, is_parallel=True)
        return not self.registry.load(spec).one_process_per_node

    def _check_supported(self, strategy: Strategy, hardware: Accelerator, num_nodes: int, world_size: int) -> None:
        name, accelerator = self.choices["strategy"].name, self.choices["accelerator"].name
        precision = self.choices["precision"].name
        spec: StrategySpec | None = self.specs.get("strategy")
        is_made_for_accelerator = False
        for facts in (strategy, spec) if spec is not None else (strategy,):
            if facts.accelerators is not None and accelerator not in facts.accelerators:
                raise ConfigurationError(
                    f"strategy={name!r} does not support accelerator {accelerator!r}. Valid accelerators: "
                    f"{quoted(facts.accelerators)}."
                )
            is_made_for_accelerator |= facts.accelerators is not None
            if facts.precisions is not None and precision not in facts.precisions:
                raise ConfigurationError(
                    f"strategy={name!r} does not support precision {precision!r}. Valid precisions: "
                    f"{quoted(facts.precisions)}."
                )
            self._check_processes(facts, strategy, num_nodes, world_size)
        check_able(hardware, self.parts["precision"], precision, world_size)
        if not is_made_for_accelerator:
            check_eager(hardware, name)

    def _check_processes(
        self, facts: Strategy | StrategySpec, strategy: Strategy, num_nodes: int, world_size: int
    ) -> None:
        low, high = facts.min_processes, facts.max_processes
        if low <= world_size and (high is None or world_size <= high):
            return
        names = ("num_nodes",) if strategy.one_process_per_node else ("devices", "num_nodes")
        asked = [str(self.arguments[name]) for name in names if not self.arguments[name].is_auto]
        nearest = low if world_size < low or high is None else high
        remedy = f"Set devices={nearest}" if num_nodes == 1 and "devices" in names else f"Use {nearest} in all"
        if self.parts["cluster_environment"].creates_processes_externally:
            given, remedy = f"the launcher has started {world_size}", f"Start {nearest}"
        elif asked:
            given = f"{' and '.join(asked)} {'asks' if len(asked) == 1 else 'ask'} for {world_size}"
        else:
            given = f"{self.arguments['devices']} means {world_size} here"
        runs = f"{low} or more" if high is None else str(low) if low == high else f"{low} to {high}"
        other = "use another strategy" if self.arguments["strategy"].is_auto else "set strategy='auto'"
        raise ConfigurationError(
            f"strategy={self.choices['strategy'].name!r} runs on {runs} process{'' if runs == '1' else 'es'}; {given}. "
            f"{remedy}, or {other}."
        )

    def _choose_launcher(
        self, strategy: Strategy, environment: ClusterEnvironment, processes: int, num_nodes: int
    ) -> str | None:
        if environment.creates_processes_externally:
            return None
        if environment.starts_processes:
            if strategy.launcher is None:
                raise ConfigurationError(
                    f"strategy={self.choices['strategy'].name!r} cannot run in processes that cluster_environment="
                    f"{environment.name!r} starts. Use a strategy that starts processes, such as 'ddp', or another "
                    "cluster_environment."
                )
            return environment.name
        launcher = strategy.launcher_for(processes, num_nodes)
        if launcher is None and processes > 1:
            raise ConfigurationError(
                f"strategy={self.choices['strategy'].name!r} starts no processes, and {self.arguments['devices']} "
                f"needs {processes} on this machine. Set devices=1, start the script with "
                f"'{strategy.launch_command}', or use a strategy that starts processes, such as 'ddp'."
            )
        return launcher

    def _choose_process_group(
        self, strategy: Strategy, accelerator: Accelerator, device: torch.device
    ) -> tuple[str | None, str]:
        name = self.choices["strategy"].name
        backend = strategy.process_group_backend_for(accelerator, device)
        if backend is None:
            return None, f"strategy {name!r} uses no process group"
        check_process_group_backend(backend, device)
        if backend == getattr(strategy, "process_group_backend", None):
            return backend, f"requested by the strategy's process_group_backend={backend!r}"
        return backend, f"the default of strategy {name!r} on accelerator {accelerator.name!r}"

    def _inexact_resume(self, accelerator: Accelerator, device: torch.device) -> str:
        reason = accelerator.inexact_resume_reason(device)
        if reason is None:
            return ""
        logger.warning(
            "accelerator %r: a resumed run will not be exact, because its random numbers on the device differ: %s",
            accelerator.name,
            harmless(reason),
        )
        return reason

    # -- the cluster environment ---------------------------------------------------------------------------------

    def _choose_environment(self) -> ClusterEnvironment:
        if not self.arguments["cluster_environment"].is_auto:
            self._choose("cluster_environment")
            requested: ClusterEnvironment = self.parts["cluster_environment"]
            return requested
        chosen: BackendSpec | None = None
        rejected = unusable("cluster_environment", self.registry)
        told = self.registry.started(self.environments, self.request.environ)
        for spec in self.environments:
            if chosen is not None:
                rejected.append(outranked(spec, chosen))
            elif (reason := self._not_started_by(spec, told.get(spec.name))) is None:
                chosen = spec
            else:
                rejected.append(Rejected(spec.name, reason))
        if chosen is None:
            reasons = "; ".join(f"{other.name}: {other.reason}" for other in rejected)
            raise BackendError(
                f"cluster_environment='auto': no cluster environment can be used here ({reasons}). Set "
                "cluster_environment to a name, or repair what keeps 'local' from being used."
            )
        self._take(chosen, "has the highest priority of those that detect how this process was started", rejected)
        detected: ClusterEnvironment = self.parts["cluster_environment"]
        return detected

    def _not_started_by(self, spec: Any, told: bool | str | None) -> str | None:
        """Why a cluster environment is not the one; ``told`` is what a plugin's has said in a separate process."""
        try:
            is_its = has_started(self.registry, spec, told, self.request.environ)
            return None if is_its else "did not start this process"
        except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin's function may raise anything; it is shown
            rejected = Rejected(spec.name, f"detection failed: {describe(error)}")
            logger.warning("cluster environment %r cannot be used: %s", spec.name, rejected.reason)
            return rejected.reason

    def _check_environment(self, environment: ClusterEnvironment, processes: int, num_nodes: int) -> None:
        """Reject a Plan that the processes which a cluster has started would contradict."""
        environment.validate_settings(processes, num_nodes)
        if environment.creates_processes_externally and environment.world_size != processes * num_nodes:
            raise ConfigurationError(
                f"{self.arguments['devices']} and {self.arguments['num_nodes']} give {processes * num_nodes} "
                f"process(es), but cluster environment {environment.name!r} has started {environment.world_size}. Set "
                "both to 'auto', or start that many processes."
            )

    # -- the accelerator and its devices -------------------------------------------------------------------------

    def _choose_accelerator(self) -> Accelerator:
        argument = self.arguments["accelerator"]
        if isinstance(argument.value, Accelerator):
            self._take_object(argument)
            self._check_present(argument)
            return argument.value
        choice, accelerator, spec = choose_accelerator(argument, self.registry)
        self.choices["accelerator"], self.parts["accelerator"], self.specs["accelerator"] = choice, accelerator, spec
        return accelerator

    def _check_present(self, argument: Argument) -> None:
        try:
            is_available = argument.value.is_available()
        except Exception as error:  # a vendor's class may raise anything; it is the cause shown
            raise BackendError(f"{argument}: is_available() raises {describe(error)}.") from error
        if not is_available:
            raise BackendError(f"{argument}: no device found. Use 'auto', or an accelerator that is present.")

    def _choose_devices(
        self, accelerator: Accelerator, environment: ClusterEnvironment
    ) -> tuple[list[torch.device], str]:
        argument = self.arguments["devices"]
        value, limit = argument.value, accelerator.device_limit()
        is_all = value == -1 if isinstance(value, Integral) else str(value).strip() in ("auto", "-1")
        is_started = environment.creates_processes_externally
        if self.request.auto_select_gpus:
            self._check_selects(argument, is_all or isinstance(value, list | tuple) or "," in str(value), is_started)
        strategy: Strategy | None = self.parts.get("strategy")
        if is_all and is_started and not (strategy is not None and strategy.one_process_per_node):
            value = environment.local_world_size
            reason = f"{environment.name} started {value} process(es) on this machine"
        elif argument.is_auto and limit != 1 and self._takes_one_device(accelerator):
            value, reason = 1, f"the default: one device, as {accelerator.name!r} does not support collectives"
        elif argument.is_auto:
            reason = "the default: one process" if limit is None else "the default: all devices present"
        else:
            reason = argument.reason
        started = environment.local_world_size if is_started else 1
        copies = 1
        pick = accelerator.pick_idle_devices if self.request.auto_select_gpus else accelerator.pick_devices
        if limit == 1 < started and value in (started, str(started)) and (only := _only_device(self.request.environ)):
            value, copies, reason = 1, started, f"{reason}; by {only}, each of them sees one device"
        try:
            indices = parse_devices(
                value,
                all_devices=accelerator.auto_device_count(),
                limit=limit,
                accelerator=accelerator.name,
                pick=None if is_started else pick,
            )
        except DeviceError as error:
            if value is argument.value and argument.label == "devices":
                raise
            advice = (
                ""
                if limit != 1 or started == 1
                else (
                    " To use one device per process, let the launcher set a variable such as *_VISIBLE_DEVICES to that "
                    "device, or let each process see all devices of the machine."
                )
            )
            raise DeviceError(f"{reason}: {error}{advice}") from error
        if limit is None and not is_started:
            warn_of_cores(len(indices), str(argument))
        accelerator.import_backend()
        devices = accelerator.get_parallel_devices(accelerator.parse_devices(indices))
        if not devices or not all(isinstance(device, torch.device) for device in devices):
            raise DeviceError(
                f"{argument}: get_parallel_devices() of accelerator {accelerator.name!r} returned {devices!r}. It must "
                "return a list of torch.device, one for each process."
            )
        return list(devices) * copies, reason

    def _check_selects(self, argument: Argument, is_chosen: bool, is_started: bool) -> None:
        """Reject ``auto_select_gpus`` where it would have no effect."""
        if is_chosen or is_started:
            why = "a launcher has started the processes" if is_started else "devices must be a number of them"
            raise DeviceError(
                f"auto_select_gpus=True, {argument}: it chooses idle devices of this machine; {why}. Leave it out."
            )

    def _choose_num_nodes(self, environment: ClusterEnvironment) -> tuple[int, str]:
        argument = self.arguments["num_nodes"]
        if not argument.is_auto:
            return argument.value, argument.reason
        if environment.creates_processes_externally:
            return environment.num_nodes, f"reported by {environment.name}"
        return 1, "the default"


def _only_device(environ: Mapping[str, str]) -> str:
    """The variable by which a launcher shows each process its own device and no other; empty if there is none."""
    found = (name for name, value in sorted(environ.items()) if name.endswith("VISIBLE_DEVICES") and value.strip())
    return next((name for name in found if "," not in environ[name]), "")


def _name(part: Any) -> str:
    return getattr(part, "name", "") or type(part).__name__
