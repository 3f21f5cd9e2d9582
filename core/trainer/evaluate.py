"""The loop without gradients: validation, test, prediction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.errors import ConfigurationError
from core.nested import map_tensors
from core.runtime.loader import prepare_loader, set_epoch
from core.runtime.modules import PreparedModule, needs_forward_context
from core.trainer.hooks import bind_callbacks, bind_hooks, bind_module_hook
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
        strategy = runtime.strategy
        self.trainer, self.module, self.step_module, self.stage = trainer, module, step_module, stage
        self.model = strategy.inference_module(runtime.strategy_module(model))
        if needs_forward_context(strategy.precision):
            self.model = PreparedModule(self.model, step_module, strategy.precision)
        self.loader = prepare_loader(loader, strategy, evaluation=True)
        self.log = MetricLog(strategy, on_step=False, on_epoch=True)
        self.limit = {
            "validate": trainer.limit_val_batches,
            "test": trainer.limit_test_batches,
            "predict": trainer.limit_predict_batches,
        }[stage]

    def run(self) -> list[Any]:
        """Evaluate every batch; returns the outputs for ``predict``, an empty list else.

        Raises:
            ConfigurationError: There was none, in any process.
        """
        trainer, module = self.trainer, self.module
        trainer.metric_log = self.log
        self.step_module.use(STEPS[self.stage])
        with _evaluation_mode(module):
            for hook in bind_hooks("on_evaluation_start", trainer, module, trainer.callbacks):
                hook(self.stage)
            outputs = self._run_batches()
            for hook in bind_module_hook("on_evaluation_end", module):
                hook(self.stage)
            trainer.take_metrics(self.log)
            for hook in bind_callbacks("on_evaluation_end", trainer, module, trainer.callbacks):
                hook(self.stage)
        return outputs

    def _run_batches(self) -> list[Any]:
        trainer, log, model = self.trainer, self.log, self.model
        batch_end = bind_hooks("on_evaluation_batch_end", trainer, self.module, trainer.callbacks)
        keeps_outputs = self.stage == "predict"
        outputs: list[Any] = []
        batch_idx = -1
        set_epoch(self.loader, trainer.current_epoch)
        batches: Iterator[tuple[int, Any]] = enumerate(islice(self.loader, self.limit))
        if trainer.runtime.strategy.infers_together:
            batches = self._in_step(batches)
        with torch.inference_mode():
            for batch_idx, batch in batches:
                log.batch = batch
                output = model(batch, batch_idx)
                for hook in batch_end:
                    hook(output, batch, batch_idx)
                if keeps_outputs:
                    outputs.append(map_tensors(torch.Tensor.cpu, output))
        log.batch = None
        strategy = trainer.runtime.strategy
        if max(strategy.all_gather_object(batch_idx)) < 0:
            raise ConfigurationError(f"dataloaders: the one to {self.stage} gave no batch. Valid: one that gives some.")
        return _in_order(strategy.gather_shards(outputs)) if keeps_outputs else outputs

    def _in_step(self, batches: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """``batches``; while other processes still have some, this one runs the forward pass along with them."""
        trainer = self.trainer
        strategy = trainer.runtime.strategy
        spare: Any = None
        while True:
            current = next(batches, None)
            have = strategy.all_gather(torch.tensor(current is not None)).tolist()
            if not any(have):
                return
            if spare is None and not all(have):
                received = strategy.broadcast(None if current is None else current[1], have.index(True))
                spare = map_tensors(lambda tensor: tensor.to(strategy.root_device), received)
            if current is not None:
                yield current
                continue
            trainer.metric_log = MetricLog(strategy, on_step=False, on_epoch=True)  # what is logged now counts nowhere
            self.model(spare, 0)
            trainer.metric_log = self.log


@contextmanager
def _evaluation_mode(module: nn.Module) -> Iterator[None]:
    """``module`` in evaluation mode within, and each of its parts as it was afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _in_order(by_shard: list[list[Any]]) -> list[Any]:
    """All outputs in the order of the batches: of ``n`` parts of the data, number ``r`` is every n-th from ``r``."""
    absent = object()
    turns = zip_longest(*by_shard, fillvalue=absent)
    return [output for turn in turns for output in turn if output is not absent]
