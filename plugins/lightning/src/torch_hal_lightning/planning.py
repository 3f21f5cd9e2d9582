"""The Plan for Lightning's arguments, and which strategies Lightning's contract allows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
from lightning.fabric.plugins import CheckpointIO as LightningCheckpointIO
from lightning.fabric.plugins import ClusterEnvironment as LightningEnvironment

from torch_hal.errors import ConfigurationError
from torch_hal.plan import Plan, Request, assemble, resolve
from torch_hal.strategies import ProcessGroupStrategy, SingleDeviceStrategy, Strategy

__all__ = ["Planned", "check_plugins", "plan_run"]

ENGINE_METHODS = ("backward", "make_backward", "training_step", "clip_gradients")
"""Where a strategy overrides one of these, its engine runs a part of the step that Lightning runs itself."""


@attrs.frozen
class Planned:
    """What runs, and the live strategy that starts processes, joins their group and wraps modules."""

    plan: Plan
    strategy: Strategy

    @property
    def is_parallel(self) -> bool:
        """Whether the strategy is one of several processes, even if this run has one."""
        return isinstance(self.strategy, ProcessGroupStrategy)

    @property
    def uses_core_format(self) -> bool:
        """Whether checkpoints have a format of torch-hal: one was requested, or the strategy divides the state."""
        return self.plan.request["checkpoint_io"] != "auto" or self.strategy.default_checkpoint_io != "torch"


def plan_run(front_end: str, **arguments: Any) -> Planned:
    """Resolve Lightning's arguments. No process is started.

    Args:
        front_end: ``Trainer`` or ``Fabric``, for messages.
        **arguments: As for :meth:`core.plan.Request.read`.

    Raises:
        CoreError: An argument cannot be resolved here, or Lightning cannot run the strategy.
    """
    given: dict[str, Any] = {name: "auto" if value is None else value for name, value in arguments.items()}
    plan = resolve(Request.read(**given))
    strategy: Strategy = plan.parts["strategy"]
    if (reason := why_not(strategy, plan)) is not None:
        raise ConfigurationError(
            f"strategy={plan.strategy.name!r} cannot run under Lightning's {front_end}: {reason}. Use strategy='ddp', "
            f"or core.{'Trainer' if front_end == 'Trainer' else 'Runtime'}, which runs every strategy."
        )
    return Planned(plan, assemble(plan))


def why_not(strategy: Strategy, plan: Plan) -> str | None:
    """Why Lightning cannot run ``strategy``; ``None`` if it can."""
    kind = type(strategy)
    if not strategy.supports_custom_loop:
        return "its engine compiles whole training steps"
    if not isinstance(strategy, ProcessGroupStrategy | SingleDeviceStrategy):
        return "its processes do not form a torch.distributed process group"
    for method in ENGINE_METHODS:
        if getattr(kind, method) is not getattr(Strategy, method):
            return f"its engine runs '{method}' itself"
    if kind.optimizer_step is not Strategy.optimizer_step and kind.uses_native_step is Strategy.uses_native_step:
        return "its engine steps the optimizer itself"
    if not strategy.keeps_replicas_equal:
        return "its processes have different weights, and Lightning saves those of one"
    if plan.launcher not in (None, "script"):
        return (
            f"it calls a function in processes that it starts (launcher {plan.launcher!r}), and Lightning has to bring "
            "the results back itself"
        )
    return None


def check_plugins(plugins: Any) -> list[Any]:
    """The argument ``plugins`` as a list of Lightning's objects.

    Raises:
        ConfigurationError: One of them is a ClusterEnvironment, which the Plan decides.
    """
    if plugins is None:
        return []
    given = list(plugins) if isinstance(plugins, Iterable) else [plugins]
    for plugin in given:
        if isinstance(plugin, LightningEnvironment):
            raise ConfigurationError(
                f"plugins: {type(plugin).__name__} is a ClusterEnvironment of Lightning. Pass "
                "cluster_environment='slurm' or another name of torch-hal, or leave it out: it is detected."
            )
    return given


def has_checkpoint_io(plugins: Iterable[Any]) -> bool:
    """Whether the user passed a CheckpointIO of Lightning's."""
    return any(isinstance(plugin, LightningCheckpointIO) for plugin in plugins)
