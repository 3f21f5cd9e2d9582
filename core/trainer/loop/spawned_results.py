"""Bringing the results of a run from a process that was started for it back to the process that started it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from ...callbacks.base import Callback
from ...utilities.nested import map_tensors
from ..checkpoint.finished_fit import FinishedFit
from ..metrics.metric_log import MetricLog
from ..module.module import Module
from ..progress import Progress
from ..run_context import RunContext

__all__ = ["Results"]


@attrs.frozen(kw_only=True)
class Results:
    """What a stage returned, and how it left the module, the metrics and the callbacks."""

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
    def of(cls, run: RunContext, returned: Any, finished: FinishedFit | None) -> Results:
        """In each process of the run: the results, with all tensors on the CPU."""
        return cls(
            returned=returned,
            module_state=_on_host(dict(run.runtime.strategy.whole_module_state(run.module))),
            training_modes=[part.training for part in run.module.modules()],
            progress=run.progress,
            batch_counts=run.batch_counts,
            metrics=_on_host(run.metric_log.state_dict()),
            callback_states=[callback.state_dict() for callback in run.hooks.callbacks],
            finished=None if finished is None else finished.detached(),
            logger_versions=[logger.version for logger in run.metric_log.loggers],
        )

    def restore(self, module: Module, metric_log: MetricLog, callbacks: Sequence[Callback]) -> None:
        """In the process that started the run: put everything in the state that it has in process 0."""
        module.configure_model()
        module.load_state_dict(self.module_state)
        for part, training in zip(module.modules(), self.training_modes, strict=True):
            part.training = training
        metric_log.load_state_dict(self.metrics)
        for callback, state in zip(callbacks, self.callback_states, strict=True):
            callback.load_state_dict(state)


def _on_host(data: Any) -> Any:
    return map_tensors(lambda tensor: tensor.detach().cpu(), data)
