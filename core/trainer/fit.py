"""The training loop: epochs over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch import Tensor

from core.strategies.base import TrainingStepOptions
from core.trainer.evaluate import EvaluationLoop, first_dimension
from core.trainer.hooks import bind_hooks
from core.trainer.metrics import MetricLog
from core.trainer.module import Module, StepModule
from core.trainer.optimization import Optimization, read_optimizers
from core.trainer.state import load_state

if TYPE_CHECKING:
    from core.trainer.trainer import Trainer

__all__ = ["FitLoop"]


class FitLoop:
    """One ``fit``: everything the loop needs is decided here, before the first batch.

    Args:
        trainer: Whose settings.
        module: What is trained.
        train_loader: The user's own loader of training batches.
        val_loader: The user's own loader of validation batches, or ``None``.
        ckpt_path: Where to resume from, or ``None``.
    """

    def __init__(
        self, trainer: Trainer, module: Module, train_loader: Any, val_loader: Any, ckpt_path: str | None
    ) -> None:
        runtime = trainer.runtime
        self.trainer, self.module = trainer, module
        self.step_module = StepModule(module)
        self.model = runtime.prepare(self.step_module)
        given = read_optimizers(module.configure_optimizers())
        self.optimization = Optimization(runtime.prepare(given.optimizer), given.schedules)
        self.loader = trainer.prepare_loader(train_loader)
        self.validation = None
        if val_loader is not None:
            self.validation = EvaluationLoop(trainer, module, self.step_module, self.model, "validate", val_loader)
        self.log = MetricLog(runtime.strategy, on_step=True, on_epoch=False)
        self._step = runtime.strategy.training_step(
            self._forward(),
            TrainingStepOptions(
                optimizer=given.optimizer,
                module=runtime.strategy_module(self.model),
                accumulate=trainer.accumulate_grad_batches,
                clip_value=trainer.gradient_clip_val,
                clip_algorithm=trainer.gradient_clip_algorithm,
            ),
        )
        if ckpt_path is not None:
            load_state(self, ckpt_path)

    def _forward(self) -> Callable[[Any, int], Tensor | None]:
        model = self.model

        def forward(batch: Any, batch_idx: int) -> Tensor | None:
            output = model(batch, batch_idx)
            loss: Tensor | None = output if output is None or isinstance(output, Tensor) else output["loss"]
            return loss

        return forward

    def run(self) -> None:
        """All epochs that are left."""
        trainer = self.trainer
        self._hooks("on_fit_start")
        self.module.train()
        while not trainer.should_stop and not self._is_done():
            self._run_epoch()
            trainer.current_epoch += 1
        self._hooks("on_fit_end")

    def _is_done(self) -> bool:
        trainer = self.trainer
        return (trainer.max_epochs is not None and trainer.current_epoch >= trainer.max_epochs) or self._has_max_steps()

    def _has_max_steps(self) -> bool:
        return self.trainer.max_steps is not None and self.trainer.global_step >= self.trainer.max_steps

    def _run_epoch(self) -> None:
        trainer = self.trainer
        self._hooks("on_train_epoch_start")
        trainer.metric_log = self.log
        self._run_batches()
        metrics = {**self.log.last_values(), **self.log.finish_epoch()}
        trainer.take_metrics(metrics)
        self.optimization.step_schedules("epoch", trainer.current_epoch + 1)
        if self.validation is not None and (trainer.current_epoch + 1) % trainer.check_val_every_n_epoch == 0:
            self.validation.run()
            self.module.train()
            self.step_module.use("training_step")
            trainer.metric_log = self.log
        self._hooks("on_train_epoch_end")

    def _run_batches(self) -> None:
        trainer, step, log = self.trainer, self._step, self.log
        batch_start = bind_hooks("on_train_batch_start", trainer, self.module, trainer.callbacks)
        batch_end = bind_hooks("on_train_batch_end", trainer, self.module, trainer.callbacks)
        has_step_schedules = any(schedule.interval == "step" for schedule in self.optimization.schedules)
        max_steps, log_every = trainer.max_steps, trainer.log_every_n_steps if trainer.loggers else 0
        for batch_idx, (batch, is_step_end) in enumerate(self._batches()):
            for hook in batch_start:
                hook(batch, batch_idx)
            if log.keeps_epoch_values:
                log.batch_size = first_dimension(batch)
            loss = step(batch, batch_idx, is_step_end)
            if is_step_end:
                trainer.global_step += 1
                if has_step_schedules:
                    self.optimization.step_schedules("step", trainer.global_step)
                if log_every and trainer.global_step % log_every == 0:
                    trainer.send_to_loggers(log.step_values())
            for hook in batch_end:
                hook(loss, batch, batch_idx)
            if trainer.should_stop or (max_steps is not None and trainer.global_step >= max_steps):
                break

    def _batches(self) -> Iterator[tuple[Any, bool]]:
        """Each batch of the epoch, and whether the optimizer steps after it."""
        trainer = self.trainer
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(trainer.current_epoch)
        batches: Iterable[Any] = self.loader
        if trainer.limit_train_batches is not None:
            batches = islice(batches, trainer.limit_train_batches)
        if trainer.accumulate_grad_batches == 1:
            return ((batch, True) for batch in batches)
        return _grouped(batches, trainer.accumulate_grad_batches)

    def _hooks(self, name: str) -> None:
        for hook in bind_hooks(name, self.trainer, self.module, self.trainer.callbacks):
            hook()


def _grouped(batches: Iterable[Any], size: int) -> Iterator[tuple[Any, bool]]:
    """Each batch, true on every ``size``-th and on the last; reads one batch ahead to know the last."""
    iterator = iter(batches)
    try:
        batch = next(iterator)
    except StopIteration:
        return
    for number, following in enumerate(iterator, start=1):
        yield batch, number % size == 0
        batch = following
    yield batch, True
