"""Accelerate's ``kwargs_handlers``: settings of DistributedDataParallel, process group, autocast and profiling."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs
from torch.profiler import profile, schedule, supported_activities

from ..errors import ConfigurationError, WrongTypeError, nearest, quoted
from ..hints.argument_checks import check_path, instead_of_class, is_list, suggest_arguments_of
from ..hints.remedies import remedies
from ..precisions.base import Precision
from ..precisions.mixed import MixedPrecision
from ..strategies.base import Strategy
from ..strategies.ddp import DDPStrategy
from ..strategies.ddp_hooks import check_communication_hook
from ..strategies.parallel import ProcessGroupStrategy
from .settings import RECIPES


@suggest_arguments_of
@attrs.frozen
class ProfileKwargs:
    """The arguments of :meth:`core.Runtime.profile`, as an object."""

    activities: Sequence[str] | None = None
    schedule_option: Mapping[str, int] | None = None
    on_trace_ready: Callable[[profile], Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | os.PathLike[str] | None = None


class Profiling:
    """Profiles a loop.

    Args:
        strategy: Of the run.
        default: The arguments that are used where none are given.
    """

    def __init__(self, strategy: Strategy, default: ProfileKwargs | None) -> None:
        self._strategy, self._default = strategy, default

    @contextmanager
    def profile(self, profile_handler: ProfileKwargs | None, given: ProfileKwargs) -> Iterator[profile]:
        """See :meth:`core.Runtime.profile`."""
        if profile_handler is not None and given != ProfileKwargs():
            raise ConfigurationError("profile_handler: given next to other arguments of profile. Pass one of the two.")
        fields = [field.name for field in attrs.fields(ProfileKwargs)]
        if profile_handler is not None and not all(hasattr(profile_handler, name) for name in fields):
            raise WrongTypeError(
                f"profile_handler={profile_handler!r}: must be a core.ProfileKwargs. Or pass its arguments by name: "
                "profile(activities=['cpu'])."
            )
        if given == ProfileKwargs():
            given = profile_handler or self._default or given
        with _profiled(given) as profiler:
            yield profiler
        if given.output_trace_dir is not None:
            os.makedirs(given.output_trace_dir, exist_ok=True)
            profiler.export_chrome_trace(
                str(Path(given.output_trace_dir) / f"profile_{self._strategy.global_rank}.json")
            )


def _check(given: ProfileKwargs) -> None:
    """Check the types, which torch's profiler finds out only at the end of the block.

    Raises:
        WrongTypeError: One is wrong.
        ConfigurationError: ``schedule_option`` has an unknown key, or lacks one.
    """
    if isinstance(given.activities, str):
        raise WrongTypeError(f"activities={given.activities!r}: must be a list. Write [{given.activities!r}].")
    if given.on_trace_ready is not None and not callable(given.on_trace_ready):
        raise WrongTypeError(
            f"on_trace_ready={given.on_trace_ready!r}: must be a function that takes the profiler. For a folder, set "
            "output_trace_dir."
        )
    check_path("output_trace_dir", given.output_trace_dir)
    option = given.schedule_option
    if option is None:
        return
    if not isinstance(option, Mapping):
        raise WrongTypeError(
            f"schedule_option={option!r}: must be a dict, such as {{'wait': 1, 'warmup': 1, 'active': 2}}."
        )
    signature = inspect.signature(schedule)
    unknown = next((key for key in option if key not in signature.parameters), None)
    problem = f"there is no {unknown!r}.{nearest(str(unknown), signature.parameters)}"
    try:
        signature.bind(**option)
    except TypeError as error:
        raise ConfigurationError(
            f"schedule_option={dict(option)!r}: {f'{error}.' if unknown is None else problem} Valid: "
            f"{quoted(signature.parameters)}."
        ) from None


def _profiled(given: ProfileKwargs) -> profile:
    _check(given)
    supported = {activity.name.lower(): activity for activity in supported_activities()}  # type: ignore[no-untyped-call]
    chosen = [name.lower() for name in given.activities] if given.activities is not None else list(supported)
    for name in chosen:
        if name not in supported:
            raise ConfigurationError(
                f"activities: {name!r} cannot be profiled here. Valid: {quoted(sorted(supported))}."
            )
    return profile(
        activities=[supported[name] for name in chosen],
        schedule=None if given.schedule_option is None else schedule(**given.schedule_option),
        on_trace_ready=given.on_trace_ready,
        record_shapes=given.record_shapes,
        profile_memory=given.profile_memory,
        with_stack=given.with_stack,
        with_flops=given.with_flops,
        with_modules=given.with_modules,
    )


class DDPCommunicationHookType(StrEnum):
    """How gradients are averaged; see :data:`core.strategies.COMMUNICATION_HOOKS`."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


HOOKS = {"fp16": "fp16_compress", "bf16": "bf16_compress", "power_sgd": "power_sgd"}
"""By their names in Accelerate: those of :class:`core.strategies.DDPStrategy`."""


@suggest_arguments_of
@attrs.frozen
class DistributedDataParallelKwargs:
    """Arguments of :class:`torch.nn.parallel.DistributedDataParallel`, and how gradients are averaged."""

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: DDPCommunicationHookType | str = DDPCommunicationHookType.NO
    comm_state_option: Mapping[str, Any] = attrs.field(factory=dict)
    """Options of ``power_sgd``, such as ``matrix_approximation_rank``."""
    comm_wrapper: DDPCommunicationHookType | str = DDPCommunicationHookType.NO
    """``FP16`` or ``BF16``: ``power_sgd`` of 16-bit copies of the gradients."""


@suggest_arguments_of
@attrs.frozen
class InitProcessGroupKwargs:
    """Arguments of :func:`torch.distributed.init_process_group`."""

    backend: str | None = None
    init_method: str | None = None
    """``None``, or ``"env://"``: whoever starts the processes says where they meet."""
    timeout: timedelta | None = None


@suggest_arguments_of
@attrs.frozen
class AutocastKwargs:
    """Arguments of :class:`torch.autocast`, for a precision that is mixed."""

    enabled: bool = True
    cache_enabled: bool = True


class DummyOptim:
    """Accelerate's stand-in for what a configuration of DeepSpeed defines: creating one is an error.

    A script that chooses by ``deepspeed_config`` between it and torch's optimizer imports it, and creates the latter.
    """

    remedy = "Create the optimizer of torch, and prepare it: also with the strategies of DeepSpeed."

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ConfigurationError(f"{type(self).__name__}: stands for no object. {self.remedy}")


class DummyScheduler(DummyOptim):
    """Like :class:`DummyOptim`, for a scheduler."""

    remedy = "Create the scheduler of torch, and prepare it: also with the strategies of DeepSpeed."


def apply_handlers(handlers: Sequence[Any] | None, strategy: Strategy, num_processes: int) -> ProfileKwargs | None:
    """Set what ``handlers`` say on ``strategy``, whose processes have not started.

    With one process there is nothing to set for a strategy that does not use DistributedDataParallel or a process
    group: scripts pass them for any number of processes.

    Args:
        handlers: Objects of the classes above, or of Accelerate's classes with these names.
        strategy: The strategy of the run.
        num_processes: The number of processes.

    Returns:
        The settings of profiling among them.

    Raises:
        ConfigurationError: A handler is given twice or cannot be used here, or the strategy has another value.
        WrongTypeError: ``handlers`` is not a list of handlers.
    """
    if handlers is None:
        return None
    if not is_list(handlers):
        raise WrongTypeError(f"kwargs_handlers={handlers!r}: must be a list of handlers.")
    names = [type(handler).__name__ for handler in handlers]
    profiling: ProfileKwargs | None = None
    for handler, name in zip(handlers, names, strict=True):
        if names.count(name) > 1:
            raise ConfigurationError(f"kwargs_handlers: has {names.count(name)} objects of {name}. Pass one.")
        if name == "DistributedDataParallelKwargs":
            given = _given(handler, DistributedDataParallelKwargs)
            if isinstance(strategy, DDPStrategy):
                _set_hook(strategy, given)
                _update(strategy.ddp_kwargs, given, name)
            elif given and num_processes > 1:
                raise _unusable(name, given, strategy)
        elif name == "InitProcessGroupKwargs":
            given = _given(handler, InitProcessGroupKwargs)
            if isinstance(strategy, ProcessGroupStrategy):
                _set_process_group(strategy, given)
            elif given and num_processes > 1:
                raise _unusable(name, given, strategy)
        elif name == "AutocastKwargs":
            given = _given(handler, AutocastKwargs)
            if isinstance(strategy.precision, MixedPrecision) and given:
                set_autocast(strategy, f"kwargs_handlers: AutocastKwargs({_shown(given)})", **given)
        elif name == "ProfileKwargs":
            profiling = ProfileKwargs(**_given(handler, ProfileKwargs))
        elif name not in RECIPES:  # the precision has read those
            ours = (AutocastKwargs, DistributedDataParallelKwargs, InitProcessGroupKwargs, ProfileKwargs)
            known = quoted([kind.__name__ for kind in ours])
            if isinstance(handler, type):
                raise WrongTypeError(f"kwargs_handlers: got the class {handler.__name__}.{instead_of_class(handler)}")
            remedy = remedies("imports").get(name, f"Valid: {known}.")
            raise WrongTypeError(f"kwargs_handlers: an object of type {name} cannot be used. {remedy}")
    return profiling


def uses_autocast(strategy: Strategy) -> bool:
    """Whether forward passes of prepared modules run under :class:`torch.autocast`."""
    precision = strategy.precision
    if not (isinstance(precision, MixedPrecision) and strategy.applies_precision):
        return False
    return precision.autocast_options.get("enabled", True)


def set_autocast(strategy: Strategy, subject: str, **options: bool) -> None:
    """Set arguments of :class:`torch.autocast` for the forward passes from now on.

    Args:
        strategy: Of the run.
        subject: What the user wrote, for the message.
        **options: The arguments.

    Raises:
        ConfigurationError: The precision is not mixed, or the strategy computes in it by itself.
        WrongTypeError: A value is no bool.
    """
    precision = strategy.precision
    for value in options.values():
        if not isinstance(value, bool):
            raise WrongTypeError(f"{subject}: must be True or False, not {type(value).__name__}.")
    if not isinstance(precision, MixedPrecision):
        raise ConfigurationError(
            f"{subject}: precision={precision.name!r} has no autocast. Set precision='bf16-mixed' or '16-mixed' of the "
            "Runtime."
        )
    if not strategy.applies_precision:
        raise ConfigurationError(
            f"{subject}: strategy={strategy.name!r} computes in precision={precision.name!r} by itself, without "
            "autocast. Set precision='32-true' of the Runtime for none."
        )
    precision.autocast_options.update(options)


def autocast_with(precision: Precision, handler: Any) -> AbstractContextManager[Any]:
    """The forward context of ``precision``, with what ``handler`` says if it is mixed.

    Raises:
        WrongTypeError: ``handler`` is no :class:`AutocastKwargs`.
    """
    if handler is None:
        return precision.forward_context()
    if isinstance(handler, type) or not all(hasattr(handler, name) for name in attrs.fields_dict(AutocastKwargs)):
        raise WrongTypeError(
            f"Runtime.autocast: autocast_handler={handler!r:.100}: must be a core.AutocastKwargs."
            f"{instead_of_class(handler)} Set precision= for another precision."
        )
    if not isinstance(precision, MixedPrecision):
        return precision.forward_context()
    return precision.autocast(enabled=handler.enabled, cache_enabled=handler.cache_enabled)


def _shown(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


def _given(handler: Any, known: type[attrs.AttrsInstance]) -> dict[str, Any]:
    """The values of ``handler`` that are not the defaults."""
    defaults = known()
    values = {name: getattr(handler, name, getattr(defaults, name)) for name in attrs.fields_dict(known)}
    return {name: value for name, value in values.items() if value != getattr(defaults, name)}


def _set_hook(strategy: DDPStrategy, given: dict[str, Any]) -> None:
    """Take the communication hook and its options out of ``given``."""
    options = dict(given.pop("comm_state_option", {}))
    hook = given.pop("comm_hook", None)
    wrapper = given.pop("comm_wrapper", None)
    if wrapper is not None:
        options["wrapper"] = HOOKS.get(kind := str(getattr(wrapper, "value", wrapper)), kind)
    if hook is None:
        if options:
            raise ConfigurationError(
                f"kwargs_handlers: comm_state_option or comm_wrapper without comm_hook, {options!r}. Set comm_hook."
            )
        return
    name = str(getattr(hook, "value", hook))
    if name == "batched_power_sgd":
        raise ConfigurationError(
            "kwargs_handlers: comm_hook='batched_power_sgd': torch's batched_powerSGD_hook fails in its first step: it "
            "passes one matrix where a batch of them is wanted. Set comm_hook='power_sgd'."
        )
    if name not in HOOKS:
        raise ConfigurationError(
            f"kwargs_handlers: comm_hook={hook!r}: unknown.{nearest(name, HOOKS)} Valid: {quoted(['no', *HOOKS])}. For "
            "a function, set strategy=core.strategies.DDPStrategy(communication_hook=...)."
        )
    if strategy.communication_hook not in (None, HOOKS[name]):
        raise ConfigurationError(
            f"kwargs_handlers: comm_hook={hook!r}, but the strategy has communication_hook="
            f"{strategy.communication_hook!r}. Pass one of them."
        )
    check_communication_hook(HOOKS[name], options)
    strategy.communication_hook, strategy.communication_options = HOOKS[name], options


def _update(settings: dict[str, Any], given: Mapping[str, Any], name: str) -> None:
    for key, value in given.items():
        if settings.setdefault(key, value) != value:
            raise ConfigurationError(
                f"kwargs_handlers: {name}({key}={value!r}), but the strategy has {key}={settings[key]!r}. Pass one of "
                "them."
            )


def _set_process_group(strategy: ProcessGroupStrategy, given: Mapping[str, Any]) -> None:
    backend = strategy.plan.process_group_backend
    if given.get("backend", backend) != backend:
        raise ConfigurationError(
            f"kwargs_handlers: InitProcessGroupKwargs(backend={given['backend']!r}), but the run uses {backend!r}. "
            f"Leave it out, or set strategy=core.strategies.DDPStrategy(process_group_backend={given['backend']!r})."
        )
    if given.get("init_method", "env://") != "env://":
        raise ConfigurationError(
            f"kwargs_handlers: InitProcessGroupKwargs(init_method={given['init_method']!r}): whoever starts the "
            "processes says where they meet. Leave it out, and pass the address to torchrun or 'torch-hal run'."
        )
    timeout = given.get("timeout", strategy.timeout)
    if not isinstance(timeout, timedelta):
        raise WrongTypeError(f"InitProcessGroupKwargs(timeout={timeout!r}): must be a datetime.timedelta.")
    strategy.timeout = timeout


def _unusable(name: str, given: Mapping[str, Any], strategy: Strategy) -> ConfigurationError:
    arguments = ", ".join(f"{key}={value!r}" for key, value in given.items())
    return ConfigurationError(
        f"kwargs_handlers: {name}({arguments}) cannot be used with strategy={strategy.name!r}. Leave it out, or set "
        "strategy='ddp'."
    )
