"""The loop without gradients: validation, test, prediction."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.nested import map_tensors
from core.runtime.modules import PreparedModule, needs_forward_context
from core.trainer.hooks import bind_hooks
from core.trainer.metrics import MetricLog
from core.trainer.module import Module, StepModule

if TYPE_CHECKING:
    from core.trainer.trainer import Trainer

__all__ = ["STEPS", "EvaluationLoop"]

STEPS = {"validate": "validation_step", "test": "test_step", "predict": "predict_step"}
"""By stage: the Module's step."""


class EvaluationLoop:
    """One stage of evaluation, run as often as asked.

    Every batch is evaluated once, by one process; none is repeated to even out the number.

    Args:
        trainer: Whose settings.
        module: What is evaluated.
        step_module: The module's steps as a forward pass.
        model: ``step_module`` as the runtime prepared it.
        stage: A key of :data:`STEPS`.
        loader: The user's own loader.
    """

    def __init__(
        self, trainer: Trainer, module: Module, step_module: StepModule, model: nn.Module, stage: str, loader: Any
    ) -> None:
        runtime = trainer.runtime
        self.trainer, self.module, self.step_module, self.stage = trainer, module, step_module, stage
        strategy = runtime.strategy
        self.model = strategy.inference_module(runtime.strategy_module(model))
        if needs_forward_context(strategy.precision):
            self.model = PreparedModule(self.model, step_module, strategy.precision)
        self.loader = trainer.prepare_loader(loader, evaluation=True)
        self.log = MetricLog(strategy, on_step=False, on_epoch=True)
        self.limit = {"validate": trainer.limit_val_batches, "test": trainer.limit_test_batches}.get(
            stage, trainer.limit_predict_batches
        )

    def run(self) -> list[Any]:
        """Evaluate every batch; returns the outputs for ``predict``, an empty list else."""
        trainer, module, log = self.trainer, self.module, self.log
        outputs: list[Any] = []
        for hook in bind_hooks("on_evaluation_start", trainer, module, trainer.callbacks):
            hook(self.stage)
        batch_end = bind_hooks("on_evaluation_batch_end", trainer, module, trainer.callbacks)
        module.eval()
        self.step_module.use(STEPS[self.stage])
        trainer.metric_log = log
        keeps_outputs = self.stage == "predict"
        with torch.inference_mode():
            for batch_idx, batch in enumerate(self.loader if self.limit is None else islice(self.loader, self.limit)):
                log.batch_size = first_dimension(batch)
                output = self.model(batch, batch_idx)
                for hook in batch_end:
                    hook(output, batch, batch_idx)
                if keeps_outputs:
                    outputs.append(map_tensors(torch.Tensor.cpu, output))
        trainer.take_metrics(log.finish_epoch())
        for hook in bind_hooks("on_evaluation_end", trainer, module, trainer.callbacks):
            hook(self.stage)
        return self._in_order(outputs) if keeps_outputs else outputs

    def _in_order(self, outputs: list[Any]) -> list[Any]:
        """The outputs of all processes, in the order of the batches: process ``r`` of ``n`` took every n-th from ``r``."""
        by_rank = self.trainer.runtime.strategy.all_gather_object(outputs)
        return [by_rank[position % len(by_rank)][position // len(by_rank)] for position in range(sum(map(len, by_rank)))]


def first_dimension(batch: Any) -> int:
    """The size of the first dimension of the first tensor in ``batch``; 1 where there is none."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.dim() else 1
    values = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    nested = (value for value in values if isinstance(value, torch.Tensor | dict | list | tuple))
    return next((first_dimension(value) for value in nested), 1)
