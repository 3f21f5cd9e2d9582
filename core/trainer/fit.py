"""The training loop: epochs over batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from core.errors import ConfigurationError, WrongTypeError
from core.runtime.loader import prepare_loader, set_epoch
from core.strategies.base import TrainingStepOptions
from core.trainer.evaluate import EvaluationLoop
from core.trainer.hooks import bind_callbacks, bind_hooks, bind_module_hook
from core.trainer.metrics import MetricLog
from core.trainer.module import Module, StepModule
from core.trainer.optimization import read_optimizers
from core.trainer.state import load_state, restore_process

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
        strategy = runtime.strategy
        self.trainer, self.module = trainer, module
        self.step_module = StepModule.of(module)
        self.model = runtime.prepare(self.step_module)
        given = read_optimizers(module.configure_optimizers())
        (optimizer,) = strategy.setup_optimizers([given.optimizer])
        self.optimization = attrs.evolve(given, optimizer=optimizer)
        self.loader = prepare_loader(train_loader, strategy)
        self.validation = None
        if val_loader is not None:
            self.validation = EvaluationLoop(trainer, module, self.step_module, self.model, "validate", val_loader)
        self.log = MetricLog(strategy, on_step=True, on_epoch=False)
        self._step = strategy.training_step(
            self._forward(),
            TrainingStepOptions(
                optimizer=optimizer,
                module=runtime.strategy_module(self.model),
                accumulate=trainer.accumulate_grad_batches,
                clip_value=trainer.gradient_clip_val,
                clip_algorithm=trainer.gradient_clip_algorithm,
            ),
        )
        self.is_mid_epoch = False
        """Whether batches of the running epoch were trained on, and others were not yet."""
        self._process_state = None if ckpt_path is None else load_state(self, ckpt_path)
        self.epochs_done = trainer.current_epoch
        """Epochs whose batches were all trained on."""

    def _forward(self) -> Callable[[Any, int], Tensor | None]:
        model, module = self.model, self.module
        ends_step = type(module).training_step_end is not Module.training_step_end
        shards = self.trainer.runtime.strategy.data_shards

        def forward(batch: Any, batch_idx: int) -> Tensor | None:
            output = model(batch, batch_idx)
            if ends_step:
                output = module.training_step_end(output)
            if output is None and shards > 1:  # the others would wait for its gradients, or go on with other ones
                raise ConfigurationError(
                    f"training_step: returned None for batch {batch_idx}, and gradients are averaged over {shards} "
                    "processes. Valid: a loss, such as 0 times what the module gives; None where one process trains."
                )
            return output if output is None or isinstance(output, Tensor) else _loss_in(output)

        return forward

    @property
    def loaders(self) -> list[Any]:
        """The loaders of training and, where there is any, of validation, as they were prepared."""
        return [self.loader] if self.validation is None else [self.loader, self.validation.loader]

    @property
    def num_batches(self) -> int | None:
        """How many batches an epoch has, in this process; ``None`` where the loader cannot tell."""
        try:
            total = len(self.loader)
        except TypeError:  # a stream
            return None
        limit = self.trainer.limit_train_batches
        return total if limit is None else min(total, limit)

    def run(self) -> None:
        """All epochs that are left."""
        trainer = self.trainer
        self.module.train()
        self._hooks("on_fit_start")
        if self._process_state is not None:
            restore_process(self, self._process_state)
        self.optimization.optimizer.zero_grad()
        while not (trainer.should_stop or self._is_done()):
            self._run_epoch()
            trainer.current_epoch = self.epochs_done
        trainer.metric_log = None
        self._hooks("on_fit_end")

    def _is_done(self) -> bool:
        trainer = self.trainer
        return (trainer.max_epochs is not None and trainer.current_epoch >= trainer.max_epochs) or self._has_max_steps()

    def _has_max_steps(self) -> bool:
        return self.trainer.max_steps is not None and self.trainer.global_step >= self.trainer.max_steps

    def _run_epoch(self) -> None:
        trainer, module = self.trainer, self.module
        trainer.metric_log = self.log
        self.step_module.use("training_step")
        self._hooks("on_train_epoch_start")
        self.is_mid_epoch = True
        self.is_mid_epoch = not self._run_batches()
        if not self.is_mid_epoch:
            self.epochs_done += 1
            self.optimization.step_schedules("epoch", self.epochs_done)
        if self.validation is not None and (trainer.current_epoch + 1) % trainer.check_val_every_n_epoch == 0:
            self.validation.run()
            trainer.metric_log = self.log
        for hook in bind_module_hook("on_train_epoch_end", module):
            hook()
        trainer.take_metrics(self.log)
        for hook in bind_callbacks("on_train_epoch_end", trainer, module, trainer.callbacks):
            hook()
        self._agree_to_stop()

    def _agree_to_stop(self) -> None:
        """One process that stops stops all: the others would wait for it in the next epoch's first step."""
        strategy = self.trainer.runtime.strategy
        if strategy.world_size > 1:
            wish = torch.tensor(float(self.trainer.should_stop), device=strategy.root_device)
            self.trainer.should_stop = bool(strategy.reduce(wish, "max"))

    def _run_batches(self) -> bool:
        """Train on the epoch's batches; returns whether on all of them."""
        trainer, step, log = self.trainer, self._step, self.log
        batch_start = bind_hooks("on_train_batch_start", trainer, self.module, trainer.callbacks)
        batch_end = bind_hooks("on_train_batch_end", trainer, self.module, trainer.callbacks)
        has_step_schedules = any(schedule.interval == "step" for schedule in self.optimization.schedules)
        max_steps, log_every = trainer.max_steps, trainer.log_every_n_steps if trainer.loggers else 0
        batch_idx = -1
        for batch_idx, batch, is_step_end in self._batches():
            for hook in batch_start:
                hook(batch, batch_idx)
            log.batch = batch
            loss = step(batch, batch_idx, is_step_end)
            if is_step_end:
                trainer.global_step += 1
                if has_step_schedules:
                    self.optimization.step_schedules("step", trainer.global_step)
                if log_every and trainer.global_step % log_every == 0:
                    trainer.send_to_loggers(log.step_values())
            if batch_end:
                outputs = None if loss is None else loss.detach()
                for hook in batch_end:
                    hook(outputs, batch, batch_idx)
            if is_step_end and (trainer.should_stop or (max_steps is not None and trainer.global_step >= max_steps)):
                break
        else:
            if batch_idx < 0:
                raise ConfigurationError(
                    f"train_dataloaders: no batch in epoch {trainer.current_epoch}. Valid: what gives batches each "
                    "time it is iterated; a generator does so once."
                )
            log.batch = None
            return True
        log.batch = None
        return batch_idx + 1 == self.num_batches

    def _batches(self) -> Iterator[tuple[int, Any, bool]]:
        """The index of each batch of the epoch, the batch, and whether the optimizer steps after it."""
        trainer, size, total = self.trainer, self.trainer.accumulate_grad_batches, self.num_batches
        set_epoch(self.loader, trainer.current_epoch)
        batches = enumerate(islice(self.loader, trainer.limit_train_batches))
        if size > 1 and total is None:
            return _looking_ahead(batches, size)
        return ((index, batch, (index + 1) % size == 0 or index + 1 == total) for index, batch in batches)

    def _hooks(self, name: str) -> None:
        for hook in bind_hooks(name, self.trainer, self.module, self.trainer.callbacks):
            hook()


def _looking_ahead(batches: Iterator[tuple[int, Any]], size: int) -> Iterator[tuple[int, Any, bool]]:
    """Each batch, true on every ``size``-th and on the last, which shows by there being none after it."""
    current = next(batches, None)
    while current is not None:
        following = next(batches, None)
        index, batch = current
        yield index, batch, (index + 1) % size == 0 or following is None
        current = following


def _loss_in(output: Any) -> Tensor:
    try:
        loss = output["loss"]
    except (TypeError, KeyError, IndexError):
        loss = None
    if not isinstance(loss, Tensor):
        raise WrongTypeError(
            f"training_step: returned {output!r}. Valid: the loss, a scalar tensor; a mapping with it under 'loss'; "
            "or None to skip the batch."
        )
    return loss
