"""One run of a stage, as its loops see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import attrs

from ..profilers.base import Profiler
from ..runtime import Runtime
from .metrics.metric_log import MetricLog
from .metrics.stage_metrics import StageMetrics
from .module.datamodule import DataModule
from .module.hooks import BatchHooks, BoundHooks, Hooks
from .module.module import Module
from .settings import Settings
from .trainer_state import Progress, Stage

T = TypeVar("T")


def parts_in_evaluation(module: Module) -> list[str]:
    """The names of the submodules of ``module`` that are in evaluation mode; empty for itself."""
    return [name for name, part in module.named_modules() if not part.training]


@attrs.define(kw_only=True)
class RunContext:
    """The context that the loops of one ``fit``, ``validate``, ``test`` or ``predict`` share."""

    settings: Settings
    """Replaced as a whole if the user changes one of them during the run."""
    progress: Progress
    metric_log: MetricLog
    hooks: Hooks
    runtime: Runtime
    module: Module
    stage: str
    """The running stage: ``train``, ``sanity_check``, ``validate``, ``test`` or ``predict``."""
    batch_hooks: BatchHooks
    """The hooks of the batches' way to the device that the user overrides."""
    datamodule: DataModule | None = None
    evaluating: Sequence[str] | None = None
    """While an evaluation runs, the names of the submodules that were in evaluation mode before it."""
    pass_begun: dict[str, Any] | None = None
    """While an evaluation of a fit runs: what :meth:`EvaluationLoop.position` returned before it.

    A checkpoint that is saved meanwhile has that, as it lacks the values that were logged so far: the resumed run
    begins the evaluation again.
    """
    batch_counts: dict[str, list[float]] = attrs.field(factory=dict)
    """By stage, the number of batches of each loader; the Trainer's own, which outlives the run."""
    epoch_outputs: dict[str, dict[int, list[Any]]] = attrs.field(factory=dict)
    """By stage and loader, what the steps of the running epoch returned, for a module with a hook that gets it."""
    profiler: Profiler | None = None
    """Measures the loops' actions; ``None`` if nothing is measured, so that it costs nothing."""

    def timed(self, action: str, function: Callable[..., T]) -> Callable[..., T]:
        """``function``, measured by the profiler if there is one."""
        return function if self.profiler is None else self.profiler.wrap(action, function)

    def timed_iterator(self, action: str, items: Iterator[T]) -> Iterator[T]:
        """``items``; the wait for each is measured by the profiler if there is one."""
        return items if self.profiler is None else self.profiler.wrap_iterable(action, items)

    def keepers(self, stage: Stage, number: int = 0) -> BoundHooks:
        """Functions, called after each batch, that keep the steps' outputs if the module has a hook for them."""
        if not self.hooks.bind_module(stage.epoch_end):
            return ()
        kept = self.epoch_outputs.setdefault(stage.name, {}).setdefault(number, [])
        return (lambda output, *_: None if output is None else kept.append(output),)

    def end_epoch_of(
        self, metrics: StageMetrics, stage: Stage, before_callbacks: Callable[[], None] | None = None
    ) -> None:
        """Call the hooks of an epoch's end, the module's first, and publish its values; every process does.

        Callbacks see the values of the epoch, those of the module's hook included. What callbacks log is published
        after the last of them, before checkpoints are written, which then hold that it was sent.
        """
        hook, metrics.is_ending = f"{stage.hooks}_epoch_end", True
        try:
            kept = [*self.epoch_outputs.pop(stage.name, {0: []}).values()]
            for call in self.hooks.bind_module(stage.epoch_end):
                call(kept if len(kept) > 1 else kept[0])
            for call in self.hooks.bind_module(hook):
                call()
            self.metric_log.publish(metrics)
            if before_callbacks is not None:
                before_callbacks()
            callbacks = self.hooks.bind_callbacks(hook, checkpoints=False)
            for call in callbacks:
                call()
            if callbacks:
                self.metric_log.publish(metrics)
            for call in self.hooks.bind_callbacks(hook, checkpoints=True):
                call()
        finally:
            metrics.is_ending = False
