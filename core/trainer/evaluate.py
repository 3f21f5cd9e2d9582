"""The loop without gradients: validation, test, prediction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, zip_longest
from typing import Any

import torch
from torch import nn

from core.data import DataSettings, prepare_loader
from core.errors import ConfigurationError
from core.nested import map_tensors
from core.runtime.modules import PreparedModule, needs_forward_context
from core.trainer.metrics import StageMetrics
from core.trainer.run import Run
from core.trainer.steps import StepModule

__all__ = ["STEPS", "EvaluationLoop"]

STEPS = {"validate": "validation_step", "test": "test_step", "predict": "predict_step"}
"""The Module's step for each stage."""

HOOKS = {"validate": "on_validation", "test": "on_test", "predict": "on_predict"}
"""How the names of the hooks of each stage begin."""

LOADERS = {"validate": "validation", "test": "test", "predict": "prediction"}
"""What the loader of each stage is called in messages."""


class EvaluationLoop:
    """One stage of evaluation, which may be run several times.

    Every batch is evaluated once, by one process; none is repeated to even out the number.

    Args:
        run: The run that this loop is part of.
        step_module: The module's steps as a forward pass.
        model: ``step_module`` as the runtime prepared it.
        stage: A key of :data:`STEPS`.
        loader: The user's own loader.
    """

    def __init__(self, run: Run, step_module: StepModule, model: nn.Module, stage: str, loader: Any) -> None:
        self._run, self.step_module, self.stage = run, step_module, stage
        self.strategy = strategy = run.runtime.strategy
        self.model = strategy.inference_module(run.runtime.strategy_module(model))
        if needs_forward_context(strategy.precision):
            self.model = PreparedModule(self.model, step_module, strategy.precision)
        self.loader = prepare_loader(loader, strategy, evaluation=True, settings=DataSettings(even_batches=False))
        self.metrics = StageMetrics(strategy, by_step=False)

    def run(self) -> list[Any]:
        """Evaluate every batch.

        Returns:
            The outputs if the stage is ``predict``, otherwise an empty list.

        Raises:
            ConfigurationError: The loader is empty in every process.
        """
        run, stage = self._run, self.stage
        run.metric_log.stage = self.metrics
        self.step_module.use(STEPS[stage])
        with _evaluation_mode(run.module):
            run.hooks.call(f"{HOOKS[stage]}_start")
            run.hooks.call(f"{HOOKS[stage]}_epoch_start")
            outputs = self._run_batches()
            run.end_epoch_of(self.metrics, f"{HOOKS[stage]}_epoch_end")
            run.metric_log.stage = None
            run.hooks.call(f"{HOOKS[stage]}_end")
        return outputs

    def _run_batches(self) -> list[Any]:
        run, metrics, model, strategy = self._run, self.metrics, self.model, self.strategy
        batch_start, batch_end = (run.hooks.bind(f"{HOOKS[self.stage]}_batch_{at}") for at in ("start", "end"))
        keeps_outputs = self.stage == "predict"
        outputs: list[Any] = []
        batch_idx = -1
        self.loader.set_epoch(run.progress.epoch)
        batches: Iterator[tuple[int, Any]] = enumerate(islice(self.loader, run.settings.limit_batches(self.stage)))
        if strategy.inference_is_collective:
            batches = self._in_step(batches)
        with torch.inference_mode():
            for batch_idx, batch in batches:
                for hook in batch_start:
                    hook(batch, batch_idx)
                metrics.batch = batch
                output = model(batch, batch_idx)
                for hook in batch_end:
                    hook(output, batch, batch_idx)
                if keeps_outputs:
                    outputs.append(map_tensors(torch.Tensor.cpu, output))
        metrics.batch = None
        if max(strategy.all_gather_object(batch_idx)) < 0:
            raise ConfigurationError(
                f"dataloaders: the {LOADERS[self.stage]} loader is empty. It must yield at least one batch each time "
                "it is iterated; a generator does so only once."
            )
        return _in_order(strategy.gather_shards(outputs)) if keeps_outputs else outputs

    def _in_step(self, batches: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        """``batches``; while other processes still have some, this one joins in their forward passes."""
        strategy, metric_log = self.strategy, self._run.metric_log
        spare: Any = None
        while True:
            current = next(batches, None)
            with strategy.assume_alike():
                have = strategy.all_gather(torch.tensor(current is not None)).tolist()
            if not any(have):
                return
            if spare is None and not all(have):
                received = strategy.broadcast(None if current is None else current[1], have.index(True))
                spare = map_tensors(lambda tensor: tensor.to(strategy.root_device), received)
            if current is not None:
                yield current
                continue
            # What is logged now must not count.
            metric_log.stage = StageMetrics(strategy, by_step=False)
            self.model(spare, 0)
            metric_log.stage = self.metrics


@contextmanager
def _evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put ``module`` in evaluation mode, and afterwards each submodule back in the mode that it had."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _in_order(by_shard: list[list[Any]]) -> list[Any]:
    """The outputs of all shards in the order of the batches: shard ``r`` of ``n`` has every n-th, starting at ``r``."""
    absent = object()
    turns = zip_longest(*by_shard, fillvalue=absent)
    return [output for turn in turns for output in turn if output is not absent]
