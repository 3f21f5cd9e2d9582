"""Bringing a run's results from a process that was started for it back to the one that asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from core.nested import map_tensors
from core.trainer.module import Module

if TYPE_CHECKING:
    from core.trainer.trainer import Trainer

__all__ = ["hand_back", "hand_over"]


@attrs.frozen(kw_only=True)
class _Results:
    """What a stage returned, and what it did to trainer and module."""

    returned: Any
    module_state: dict[str, Any] | None = None
    modes: list[bool] = attrs.field(factory=list)
    trainer_state: dict[str, Any] = attrs.field(factory=dict)
    callback_states: list[dict[str, Any]] = attrs.field(factory=list)


_TRAINER_STATE = ("current_epoch", "global_step", "should_stop", "_metrics", "prog_bar_metrics")


def hand_over(returned: Any, trainer: Trainer, module: Module) -> _Results:
    """In each process: what the asking one must be told; little where this is the asking one itself."""
    if not trainer.runtime.plan.runs_function:
        return _Results(returned=returned)
    return _Results(
        returned=returned,
        module_state=_on_host(dict(trainer.strategy.whole_module_state(module))),
        modes=[part.training for part in module.modules()],
        trainer_state=_on_host({name: getattr(trainer, name) for name in _TRAINER_STATE}),
        callback_states=[callback.state_dict() for callback in trainer.callbacks],
    )


def hand_back(results: _Results, trainer: Trainer, args: tuple[Any, ...]) -> Any:
    """In the asking process: make trainer and module as they were in process 0; returns what the stage returned."""
    if results.module_state is not None:
        module = next(arg for arg in args if isinstance(arg, Module))
        module.load_state_dict(results.module_state)
        for part, training in zip(module.modules(), results.modes, strict=True):
            part.training = training
        for name, value in results.trainer_state.items():
            setattr(trainer, name, value)
        for callback, state in zip(trainer.callbacks, results.callback_states, strict=True):
            callback.load_state_dict(state)
    return results.returned


def _on_host(data: Any) -> Any:
    return map_tensors(lambda tensor: tensor.detach().cpu(), data)
