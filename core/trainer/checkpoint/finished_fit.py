"""A finished fit: the state kept for ``save_checkpoint``, and the results sent to the process that started it."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs
from torch import Tensor, nn

from ...callbacks.base import Callback
from ...errors import CheckpointError, ConfigurationError, quoted
from ...strategies.base import Strategy
from ...utilities.nested import map_tensors
from ...utilities.torch_private import uncompiled_names
from ..metrics.metric_log import MetricLog
from ..module.hooks import Hooks
from ..module.hparams import hyperparameters_of
from ..module.module import Module
from ..run_context import RunContext
from ..trainer_state import Progress
from .fit_state import FitState, callback_states, fit_facts

if TYPE_CHECKING:
    from ..trainer import Trainer


CHANGED = (
    "module: it consists of other parts in the processes that the strategy has started than in the process that called "
    "them, which could not take their weights over. Create all parts in __init__, or in configure_model, which every "
    "process calls."
)


@attrs.define(kw_only=True)
class FinishedFit:
    """The checkpoint that ``save_checkpoint`` writes after a fit, when the process group is gone."""

    module: Module | None
    """``None`` only on the way from a process that was started for the run."""
    is_divided: bool
    """Whether the state is divided among the processes, so that none can write it alone."""
    facts: dict[str, Any]
    """The parts of a checkpoint that say where the fit is."""
    parts: dict[str, Any]
    """Its other parts that are gathered at the end of the fit."""
    state: FitState | None
    """The source of the other parts; ``None`` if they are in :attr:`parts`."""

    @classmethod
    def of(cls, state: FitState) -> FinishedFit:
        """In each process, at the end of the fit."""
        context, strategy = state.context, state.context.runtime.strategy
        return cls(
            module=context.module,
            is_divided=strategy.world_size > 1 and strategy.saving_is_collective,
            facts=fit_facts(context),
            parts={"processes": state.process_states()},
            # Not what the run has prepared, which ends with it.
            state=attrs.evolve(state, loaders=(), model=context.module, controls=None),
        )

    def detached(self) -> FinishedFit:
        """To be sent to another process: without the module, all tensors on the CPU."""
        assert self.state is not None
        rest = {} if self.is_divided else self.state.training_state()
        parts = _on_host({**self.parts, **rest})
        return attrs.evolve(self, module=None, parts=parts, state=None)

    def save(
        self,
        trainer: Trainer,
        strategy: Strategy,
        callbacks: Sequence[Callback],
        path: str | os.PathLike[str],
        weights_only: bool,
        storage_options: Any,
    ) -> None:
        """Write the checkpoint, in process 0; every process may call it.

        Raises:
            CheckpointError: It could not be written, or the state was divided among processes that have ended.
        """
        module = self.module
        assert module is not None
        if self.is_divided and not (weights_only and self.state is None):
            raise CheckpointError(
                f"save_checkpoint: strategy {strategy.name!r} divides the state among its processes, and fit has "
                "ended their process group. Save in on_fit_end, or with a ModelCheckpoint(save_last=True)."
            )
        if not strategy.is_global_zero:
            return
        checkpoint = dict(self.facts)
        if not weights_only:
            checkpoint |= {**self.parts, **({} if self.state is None else self.state.training_state())}
            checkpoint["callbacks"] = callback_states(callbacks)
        checkpoint |= hyperparameters_of(module, trainer.datamodule)
        checkpoint["state_dict"] = module.state_dict()
        for hook in Hooks(trainer, module, callbacks).bind("on_save_checkpoint"):
            hook(checkpoint)
        Strategy.save_checkpoint(strategy, checkpoint, path, storage_options)
        strategy.end_saving()  # no step and no end of a run comes that could raise its error


@attrs.frozen(kw_only=True)
class Results:
    """The result of a stage, and the state of the module, the metrics and the callbacks after it."""

    returned: Any
    module_state: dict[str, Any]
    left_out: dict[str, Tensor]
    """Tensors of the module that its ``state_dict`` leaves out, such as those of a part that is not trained."""
    training_modes: list[bool]
    progress: Progress
    batch_counts: dict[str, list[float]]
    metrics: dict[str, Any]
    callback_states: list[dict[str, Any]]
    finished: FinishedFit | None
    logger_versions: list[Any]

    @classmethod
    def of(cls, context: RunContext, returned: Any, finished: FinishedFit | None) -> Results:
        """In each process of the run: the results, with all tensors on the CPU."""
        strategy = context.runtime.strategy
        state = _on_host(dict(strategy.whole_module_state(context.module)))
        own = _tensors(context.module) if strategy.is_global_zero else {}
        rest = {name: one.data for name, one in own.items() if name not in state and type(one.data) is Tensor}
        return cls(
            returned=returned,
            module_state=state,
            left_out=_on_host({name: data for name, data in rest.items() if not data.is_meta}),
            training_modes=[part.training for part in context.module.modules()],
            progress=context.progress,
            batch_counts=context.batch_counts,
            metrics=_on_host(context.metric_log.state_dict()),
            callback_states=[callback.state_dict() for callback in context.hooks.callbacks],
            finished=None if finished is None else finished.detached(),
            logger_versions=[logger.version for logger in context.metric_log.loggers],
        )

    def restore(self, module: Module, metric_log: MetricLog, callbacks: Sequence[Callback]) -> None:
        """In the process that started the run: put everything in the state that it has in process 0."""
        module.configure_model()
        own = _tensors(module)
        for name, tensor in own.items():
            tensor.data = tensor.data.to(getattr(self.module_state.get(name), "dtype", tensor.dtype))  # the precision's
        if self.left_out.keys().isdisjoint(nn.Module.state_dict(module)):
            try:
                module.load_state_dict(self.module_state)
            except RuntimeError as error:
                raise ConfigurationError(f"{CHANGED} In this process: {error}") from error
        else:  # a state_dict of the user's own
            nn.Module.load_state_dict(module, self.module_state, strict=False)
        for name in own.keys() & self.left_out.keys():
            own[name].data = self.left_out[name].to(own[name].device)
        for part, training in zip(module.modules(), self.training_modes, strict=True):
            part.training = training
        metric_log.load_state_dict(self.metrics)
        for callback, state in zip(callbacks, self.callback_states, strict=True):
            callback.load_state_dict(state)


def check_same(module: Module, names: Collection[str]) -> None:
    """Check, in a process of a run, that hooks have added no weights that the process that started it does not have.

    Args:
        module: After the hooks.
        names: Those of the module's state before.

    Raises:
        ConfigurationError: They have.
    """
    added = nn.Module.state_dict(module).keys() - names
    if added:
        raise ConfigurationError(f"{CHANGED} Added: {quoted(sorted(added)[:5])}")


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, also those that are not persistent."""
    return uncompiled_names(dict(chain(module.named_parameters(), module.named_buffers())))


def _on_host(data: Any) -> Any:
    return map_tensors(lambda tensor: tensor.detach().cpu(), data)
