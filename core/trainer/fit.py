"""The training loop: epochs over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import attrs
import torch
from torch import Tensor

from core.data import prepare_loader
from core.errors import ConfigurationError, WrongTypeError
from core.nested import map_tensors
from core.strategies.step import TrainingStepOptions
from core.trainer.evaluate import EvaluationLoop
from core.trainer.metrics import StageMetrics
from core.trainer.module import Module
from core.trainer.optimization import read_optimizers
from core.trainer.run import Run
from core.trainer.state import FitState
from core.trainer.steps import StepModule

__all__ = ["FitLoop"]


class FitLoop:
    """One ``fit``: everything the loop needs is decided here, before the first batch.

    Args:
        run: The run that this loop is part of.
        train_loader: The user's own loader of training batches.
        val_loader: The user's own loader of validation batches, or ``None``.
        ckpt_path: The checkpoint to resume from, or ``None``.
    """

    def __init__(self, run: Run, train_loader: Any, val_loader: Any, ckpt_path: str | None) -> None:
        runtime, settings, module = run.runtime, run.settings, run.module
        strategy = runtime.strategy
        self._run, self.strategy = run, strategy
        self.step_module = StepModule.of(module)
        self.model = runtime.prepare(self.step_module)
        configured = read_optimizers(module.configure_optimizers())
        (optimizer,) = strategy.setup_optimizers([configured.optimizer])
        self.optimization = attrs.evolve(configured, optimizer=optimizer)
        self.loader = prepare_loader(train_loader, strategy)
        self.validation = None
        if val_loader is not None:
            self.validation = EvaluationLoop(run, self.step_module, self.model, "validate", val_loader)
        self.metrics = StageMetrics(strategy, by_step=True)
        self._mappings: list[Any] = []
        """What the last step returned, if it was a mapping."""
        self._step = strategy.training_step(
            self._forward(),
            TrainingStepOptions(
                optimizer=optimizer,
                module=runtime.strategy_module(self.model),
                accumulate=settings.accumulate_grad_batches,
                clip_value=settings.gradient_clip_val,
                clip_algorithm=settings.gradient_clip_algorithm,
            ),
        )
        loaders = [self.loader] if self.validation is None else [self.loader, self.validation.loader]
        self.state = FitState(
            run=run,
            optimization=self.optimization,
            loaders=loaders,
            model=runtime.strategy_module(self.model),
            metrics=self.metrics,
        )
        self._total: int | None = None
        """The number of batches of the running epoch, if it is known."""
        self._process_state = None if ckpt_path is None else self.state.load(ckpt_path)

    def _forward(self) -> Callable[[Any, int], Tensor | None]:
        model, module = self.model, self._run.module
        ends_step = type(module).training_step_end is not Module.training_step_end
        # Not self: in a circle with it, the loader and its workers would live on after the run.
        mappings, shards = self._mappings, self.strategy.data_shards
        # A step that is compiled as a whole runs this only to be traced: the values are not those of the step.
        keeps_mapping = self.strategy.supports_custom_loop

        def forward(batch: Any, batch_idx: int) -> Tensor | None:
            output = model(batch, batch_idx)
            if ends_step:
                output = module.training_step_end(output)
            if output is None and shards > 1:  # the others would wait for its gradients, or go on with other ones
                raise ConfigurationError(
                    f"training_step: returned None for batch {batch_idx}, but only a run with one process can skip a "
                    f"batch, and this one averages gradients over {shards}. Return a loss, such as 0 times the "
                    "module's output."
                )
            if output is None or isinstance(output, Tensor):
                return output
            if keeps_mapping:
                mappings[:] = [output]
            return _loss_in(output)

        return forward

    @property
    def num_batches(self) -> int | None:
        """The number of batches of an epoch in this process; ``None`` if the loader has no length."""
        try:
            total = len(self.loader)
        except TypeError:  # a stream
            return None
        limit = self._run.settings.limit_train_batches
        return total if limit is None else min(total, limit)

    def run(self) -> None:
        """Train for all epochs that are left."""
        run, progress = self._run, self._run.progress
        run.module.train()
        run.hooks.call("on_fit_start")
        self.optimization.optimizer.zero_grad()
        run.hooks.call("on_train_start")
        if self._process_state is not None:
            self.state.restore_process(self._process_state)
        resumes = progress.is_mid_epoch
        while not (progress.should_stop or self._is_done()):
            self._run_epoch(resumes)
            progress.finish_epoch()
            resumes = False
        run.metric_log.stage = None
        run.hooks.call("on_train_end")
        run.hooks.call("on_fit_end")

    def _is_done(self) -> bool:
        settings, progress = self._run.settings, self._run.progress
        has_all_epochs = settings.max_epochs is not None and progress.epoch >= settings.max_epochs
        return has_all_epochs or (settings.max_steps is not None and progress.step >= settings.max_steps)

    def _run_epoch(self, resumes: bool) -> None:
        run, progress, metric_log = self._run, self._run.progress, self._run.metric_log
        metric_log.stage = self.metrics
        self.step_module.use("training_step")
        if not resumes:
            run.hooks.call("on_train_epoch_start")
            progress.start_batches()
        if self._run_batches():
            progress.finish_batches()
            self.optimization.step_schedules("epoch", progress.completed_epochs)
        if self.validation is not None and (progress.epoch + 1) % run.settings.check_val_every_n_epoch == 0:
            self.validation.run()
            metric_log.stage = self.metrics
        run.end_epoch_of(self.metrics, "on_train_epoch_end")
        self._agree_to_stop()

    def _agree_to_stop(self) -> None:
        """If one process stops, all stop: the others would wait for it in the first step of the next epoch."""
        strategy, progress = self.strategy, self._run.progress
        if strategy.world_size > 1:
            wish = torch.tensor(float(progress.should_stop), device=strategy.root_device)
            with strategy.assume_alike():
                progress.should_stop = bool(strategy.reduce(wish, "max"))

    def _run_batches(self) -> bool:
        """Train on the batches of the epoch; returns whether on all of them."""
        run, progress, step, metrics = self._run, self._run.progress, self._step, self.metrics
        settings, metric_log, strategy = run.settings, run.metric_log, self.strategy
        batch_start, batch_end = run.hooks.bind("on_train_batch_start"), run.hooks.bind("on_train_batch_end")
        has_step_schedules = any(schedule.interval == "step" for schedule in self.optimization.schedules)
        max_steps, log_every = settings.max_steps, settings.log_every_n_steps if metric_log.loggers else 0
        batch_idx = progress.batch - 1
        for batch_idx, batch, is_step_end in self._batches():
            is_skipping = False
            for hook in batch_start:
                is_skipping |= hook(batch, batch_idx) == -1
            if is_skipping:
                progress.is_accumulating = False
                self.optimization.optimizer.zero_grad()  # of a window of accumulated batches that ends here
                metrics.batch = None
                return True
            metrics.batch = batch
            loss = step(batch, batch_idx, is_step_end)
            progress.batch, progress.is_accumulating = batch_idx + 1, not is_step_end
            if is_step_end:
                progress.step += 1
                if has_step_schedules:
                    self.optimization.step_schedules("step", progress.step)
                if log_every and progress.step % log_every == 0:
                    metric_log.send_to_loggers(metrics.step_values(), progress.step, strategy)
            if batch_end:
                outputs = self._outputs(loss)
                for hook in batch_end:
                    hook(outputs, batch, batch_idx)
            elif self._mappings:
                self._mappings.clear()
            if is_step_end and (progress.should_stop or (max_steps is not None and progress.step >= max_steps)):
                break
        else:
            if batch_idx < 0:
                raise ConfigurationError(
                    f"train_dataloaders: the training loader is empty in epoch {progress.epoch}. It must yield batches "
                    "each time it is iterated; a generator does so only once."
                )
            metrics.batch = None
            return True
        metrics.batch = None
        return batch_idx + 1 == self._total

    def _outputs(self, loss: Tensor | None) -> Any:
        """What the last step returned, detached."""
        return map_tensors(Tensor.detach, self._mappings.pop() if self._mappings else loss)

    def _batches(self) -> Iterator[tuple[int, Any, bool]]:
        """The index of each batch of the epoch, the batch, and whether the optimizer steps after it."""
        settings, loader, first = self._run.settings, self.loader, self._run.progress.batch
        size, limit = settings.accumulate_grad_batches, settings.limit_train_batches
        loader.set_epoch(self._run.progress.epoch)
        try:
            total: int | None = first + loader.batches_left
        except TypeError:  # a stream
            total = None
        if total is not None and limit is not None:
            total = min(total, limit)
        self._total = total
        batches = enumerate(islice(loader, None if limit is None else limit - first), first)
        if total is not None or size == 1:
            return ((index, batch, (index + 1) % size == 0 or index + 1 == total) for index, batch in batches)
        return (
            (index, batch, (index + 1) % size == 0 or index + 1 == limit or loader.end_of_dataloader)
            for index, batch in batches
        )


def _loss_in(output: Any) -> Tensor:
    try:
        loss = output["loss"]
    except (TypeError, KeyError, IndexError):
        loss = None
    if not isinstance(loss, Tensor):
        raise WrongTypeError(
            f"training_step: returned {output!r}. It must return the loss, a scalar tensor; or a mapping with the loss "
            "under 'loss'; or None to skip the batch."
        )
    return loss
