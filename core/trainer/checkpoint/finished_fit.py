"""A finished fit: the state kept for ``save_checkpoint``, and the results sent to the process that started it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs

from ...callbacks.base import Callback
from ...errors import CheckpointError
from ...strategies.base import Strategy
from ...utilities.nested import map_tensors
from ..metrics.metric_log import MetricLog
from ..module.hooks import Hooks
from ..module.hparams import hyperparameters_of
from ..module.module import Module
from ..run_context import RunContext
from ..trainer_state import Progress
from .fit_state import FitState, callback_states, fit_facts

if TYPE_CHECKING:
    from ..trainer import Trainer


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
        return cls(
            returned=returned,
            module_state=_on_host(dict(context.runtime.strategy.whole_module_state(context.module))),
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
        for name, tensor in chain(module.named_parameters(), module.named_buffers()):
            tensor.data = tensor.data.to(getattr(self.module_state.get(name), "dtype", tensor.dtype))  # the precision's
        module.load_state_dict(self.module_state)
        for part, training in zip(module.modules(), self.training_modes, strict=True):
            part.training = training
        metric_log.load_state_dict(self.metrics)
        for callback, state in zip(callbacks, self.callback_states, strict=True):
            callback.load_state_dict(state)


def _on_host(data: Any) -> Any:
    return map_tensors(lambda tensor: tensor.detach().cpu(), data)
