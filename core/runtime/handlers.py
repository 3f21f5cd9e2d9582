"""Accelerate's ``kwargs_handlers``: settings of DistributedDataParallel and of the process group, as objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import attrs

from core.errors import ConfigurationError, WrongTypeError, quoted
from core.strategies.base import Strategy
from core.strategies.ddp import DDPStrategy
from core.strategies.parallel import ProcessGroupStrategy

__all__ = ["DistributedDataParallelKwargs", "InitProcessGroupKwargs", "apply_handlers"]


@attrs.frozen
class DistributedDataParallelKwargs:
    """Arguments of :class:`torch.nn.parallel.DistributedDataParallel`."""

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False


@attrs.frozen
class InitProcessGroupKwargs:
    """Arguments of :func:`torch.distributed.init_process_group`."""

    backend: str | None = None
    timeout: timedelta | None = None


REMEDIES = {
    "GradScalerKwargs": "Set precision=core.precisions.MixedPrecision('float16', scaler=torch.amp.GradScaler(...)).",
    "AutocastKwargs": "Use `with torch.autocast(runtime.device.type, enabled=False):` where it applies.",
    "ProfileKwargs": "Pass its contents to runtime.profile(...).",
}
"""Other handlers of Accelerate: what to do instead."""


def apply_handlers(handlers: Sequence[Any] | None, strategy: Strategy, num_processes: int) -> None:
    """Set what ``handlers`` say on ``strategy``, whose processes have not started.

    With one process there is nothing to set for a strategy that does not use DistributedDataParallel or a process
    group: scripts pass them for any number of processes.

    Args:
        handlers: Objects of the classes above, or of Accelerate's classes with these names.
        strategy: The strategy of the run.
        num_processes: The number of processes.

    Raises:
        ConfigurationError: A handler is given twice or cannot be used here, or the strategy has another value.
        WrongTypeError: ``handlers`` is not a list of handlers.
    """
    if handlers is None:
        return
    if not isinstance(handlers, list | tuple):
        raise WrongTypeError(f"kwargs_handlers={handlers!r}: must be a list of handlers.")
    names = [type(handler).__name__ for handler in handlers]
    for handler, name in zip(handlers, names, strict=True):
        if names.count(name) > 1:
            raise ConfigurationError(f"kwargs_handlers: has {names.count(name)} objects of {name}. Pass one.")
        if name == "DistributedDataParallelKwargs":
            _check_no_hook(handler)
            given = _given(handler, DistributedDataParallelKwargs)
            if isinstance(strategy, DDPStrategy):
                _update(strategy.ddp_kwargs, given, name)
            elif given and num_processes > 1:
                raise _unusable(name, given, strategy)
        elif name == "InitProcessGroupKwargs":
            given = _given(handler, InitProcessGroupKwargs)
            if isinstance(strategy, ProcessGroupStrategy):
                _set_process_group(strategy, given)
            elif given and num_processes > 1:
                raise _unusable(name, given, strategy)
        else:
            known = quoted(["DistributedDataParallelKwargs", "InitProcessGroupKwargs"])
            raise WrongTypeError(
                f"kwargs_handlers: an object of type {name} cannot be used. {REMEDIES.get(name, f'Valid: {known}.')}"
            )


def _given(handler: Any, known: type[attrs.AttrsInstance]) -> dict[str, Any]:
    """The values of ``handler`` that are not the defaults."""
    fields = {field.name: field.default for field in attrs.fields(known)}
    values = {name: getattr(handler, name, default) for name, default in fields.items()}
    return {name: value for name, value in values.items() if value != fields[name]}


def _check_no_hook(handler: Any) -> None:
    hook = getattr(handler, "comm_hook", None)
    if hook is not None and getattr(hook, "value", hook) != "no":
        raise ConfigurationError(
            f"kwargs_handlers: comm_hook={hook!r}: set strategy=core.strategies.DDPStrategy(communication_hook=...) to "
            "'fp16_compress', 'bf16_compress', 'power_sgd' or a function instead."
        )


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
