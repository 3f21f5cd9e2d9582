"""The training loop: epochs over batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Literal

import attrs
import torch
from torch import Tensor, nn

from ...callbacks.agreement import EveryNSteps, SharedClock
from ...checkpoints.base import CheckpointIO
from ...errors import ConfigurationError, quoted
from ...logging import get_logger
from ...random import get_rng_state, set_rng_state
from ...runtime.checks import check_holds
from ...runtime.prepare.prepared import PreparedObjects
from ...runtime.prepare.wrappers import PreparedModule, needs_forward_context
from ...strategies.training_step import TrainingStep, TrainingStepOptions
from ...utilities.nested import map_tensors
from ..checkpoint.fit_state import FitState
from ..fit_warnings import warn_of_infinite_loss, warn_of_missing_steps, warn_of_rare_logs
from ..metrics.stage_metrics import StageMetrics
from ..module.hooks import overridden
from ..module.module import Module
from ..run_context import RunContext, parts_in_evaluation
from ..settings import Settings
from ..step.configure_optimizers import Optimization, read_optimizers
from ..step.custom_step import compose_step, manual_step, step_without_optimizer
from ..step.lr_schedulers import LRSchedulerConfig, LRSchedulers
from ..step.optimizer_controls import Controls
from ..step.step_module import StepModule, loss_in
from ..trainer_state import STAGES
from .data_sources import KINDS, Reloading, why_empty
from .epoch import TrainingBatches, ValidationTimes
from .evaluate import EvaluationLoop, sanity_check
from .signals import Signals

logger = get_logger(__name__)


class FitLoop:
    """One ``fit``: everything the loop needs is decided here, before the first batch.

    Args:
        context: Of the run that this loop is part of.
        train_loader: The user's own loader of training batches; ``None`` if there is nothing to train on.
        val_loader: The user's own loader of validation batches, or ``None``.
        reloading: Creates both again where that is due.
    """

    def __init__(self, context: RunContext, train_loader: Any, val_loader: Any, reloading: Reloading) -> None:
        runtime, module = context.runtime, context.module
        strategy = runtime.strategy
        self._context, self.strategy = context, strategy
        self.step_module = StepModule.of(module)
        self.model = runtime.prepare(self.step_module)
        self.batches = TrainingBatches(context, train_loader)
        self._reloading = reloading
        self.metrics = StageMetrics(strategy, context.progress)
        self.validation = None
        if val_loader is not None:
            stage = STAGES["validate"]
            self.validation = EvaluationLoop(context, self.step_module, self.model, stage, val_loader, self.metrics)
        self.is_manual = not module.automatic_optimization
        self.optimization = Optimization()
        self._has_loss: bool | None = None
        """Whether a step of the epoch returned a loss; ``None`` before its first step."""
        self._newest_loss: Tensor | None = None
        self._has_warned = False
        """Whether a loss that is no number was reported."""
        self.signals: Signals | None = None
        """Acts on signals after batches, while the fit runs."""
        self._logged = EveryNSteps()
        """Counts the steps since values were last sent to the loggers."""
        self._clock: SharedClock | None = None
        """Counts the time since the last validation, where ``val_check_interval`` is one."""
        self._times: ValidationTimes | None = None
        """When validation is due in the running epoch."""
        self._mappings: list[Any] = []
        """What the last step returned, if it was a mapping."""

    def configure(self, ckpt_path: str | None, checkpoint: dict[str, Any]) -> None:
        """Create the optimizers, and load the checkpoint. The Module can already ask how long the fit will be.

        Args:
            ckpt_path: The checkpoint to resume from, or ``None``.
            checkpoint: What was read from there.
        """
        context, strategy = self._context, self.strategy
        configured = read_optimizers(context.module.configure_optimizers(), automatic=not self.is_manual)
        if not self.is_manual:
            check_holds(context.module, configured.optimizers, "configure_optimizers", strategy.world_size)
        optimizers = tuple(strategy.setup_optimizers(configured.optimizers)) if configured.optimizers else ()
        self._reduced = PreparedObjects().watch(optimizers, strategy.world_size, [self.model])
        if self.validation is not None:
            self.validation.configure()
        self.optimization = attrs.evolve(configured, optimizers=optimizers)
        self.schedules = LRSchedulers(() if self.is_manual else configured.schedules, context, strategy)
        module = context.runtime.strategy_module(self.model)
        self.controls = Controls(context, optimizers, module)
        self._bind_step()
        self.state = FitState(
            context=context,
            optimization=self.optimization,
            loaders=self._loaders(),
            model=module,
            metrics=self.metrics,
            controls=self.controls,
        )
        self._process_state = None
        if ckpt_path is not None:
            self._process_state = states = self.state.load(checkpoint, ckpt_path)
            again = [kind for kind in KINDS if self._reloading.was_due(kind)]
            for kind in again:
                self._create(kind)
            if again:
                states.restore_loaders(self.state.loaders, ckpt_path)

    @property
    def _steps_itself(self) -> bool:
        """Whether the Trainer computes gradients and steps."""
        return not self.is_manual and bool(self.optimization.optimizers) and self.strategy.supports_custom_loop

    def _loaders(self) -> list[Any]:
        return [self.batches.loader] + ([] if self.validation is None else self.validation.loaders)

    def _reload(self, kind: str) -> None:
        """Create the loader of ``kind`` again if that is due."""
        if self._reloading.is_due(kind):
            self._create(kind)

    def _create(self, kind: str) -> None:
        reads = self.batches if kind == "train" else self.validation
        if reads is not None:
            reads.reload(self._reloading.load(kind))
            self.state = attrs.evolve(self.state, loaders=self._loaders())

    def _make_step(self, module: nn.Module) -> TrainingStep:
        if self.is_manual:
            return manual_step(self.model, self._context.module, self.controls, self._mappings)
        settings = self._context.settings
        if not self.optimization.optimizers:
            return step_without_optimizer(self._forward(), partial(self.strategy.no_sync, module))
        options = TrainingStepOptions(
            optimizer=self.optimization.optimizers[0],
            module=module,
            accumulate=settings.accumulate_grad_batches,
            clip_value=settings.gradient_clip_val,
            clip_algorithm=settings.gradient_clip_algorithm,
        )
        return compose_step(self._context, self.controls, self._forward(), options)

    def accumulate(self, count: int) -> Settings:
        """Accumulate ``count`` batches for each optimizer step, from the next epoch's batches on."""
        context = self._context
        if count != context.settings.accumulate_grad_batches:
            context.settings = attrs.evolve(context.settings, accumulate_grad_batches=count)
            self._bind_step()
        return context.settings

    def _bind_step(self) -> None:
        context = self._context
        self._optimizer_steps = [optimizer.step for optimizer in self.optimization.optimizers]
        self._step = context.timed("run_training_batch", self._make_step(context.runtime.strategy_module(self.model)))

    def _follow_optimizers(self) -> None:
        """Use the ``step`` that a hook has given an optimizer, as a scheduler does that is created there."""
        if self._optimizer_steps != [optimizer.step for optimizer in self.optimization.optimizers]:
            self.controls.bind_steps()
            self._bind_step()

    def _forward(self) -> Callable[[Any, int], Tensor | None]:
        model, module = self.model, self._context.module
        end = overridden(module, Module, "training_step_end")
        # Not self: in a circle with it, the loader and its workers would live on after the run.
        mappings, shards, progress = self._mappings, self.strategy.data_shards, self._context.progress
        # A step that is compiled as a whole runs this only to be traced: the values are not those of the step.
        keeps_mapping = self.strategy.supports_custom_loop

        def forward(batch: Any, batch_idx: int) -> Tensor | None:
            output = model(batch, batch_idx)
            progress.computed = batch_idx
            if end is not None:
                output = end(output)
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
            return loss_in(output)

        return forward

    def step_each_epoch(self, scheduler: Any) -> None:
        """Step ``scheduler`` after each epoch from now on, and the module's own no longer."""
        self.schedules = LRSchedulers((LRSchedulerConfig(scheduler),), self._context, self.strategy)

    def run_forward(self) -> None:
        """Run the training step's forward pass on each batch of an epoch, in training mode, without gradients.

        What is logged goes nowhere; random numbers and the loader's position are afterwards as before.
        """
        context, strategy, loader = self._context, self.strategy, self.batches.loader
        model = strategy.inference_module(context.runtime.strategy_module(self.model))
        if needs_forward_context(strategy.precision):
            model = PreparedModule(model, self.step_module, strategy.precision)
        generators, position = get_rng_state(strategy.accelerator, strategy.root_device), loader.state_dict()
        self.step_module.use("training_step")
        with context.metric_log.discarding(), torch.no_grad():
            context.metric_log.stage = metrics = StageMetrics(strategy, context.progress)
            self.batches.begin_epoch()
            num = self.batches.num_batches
            batches = islice(loader, None if math.isinf(num) else int(num))
            for batch_idx, batch in enumerate(context.batch_hooks.applied(batches)):
                metrics.batch = () if batch is None else batch
                model(batch, batch_idx)
        loader.load_state_dict(position, reshard=True)  # one of a resumed run may be that of other processes
        set_rng_state(generators, strategy.accelerator, strategy.root_device)

    def rehearse(self, batch: Any, batch_idx: int) -> None:
        """Run forward and backward of a batch in this process alone, and drop the gradients."""
        module = self._context.runtime.strategy_module(self.model)
        try:
            with self.strategy.no_sync(module):
                loss = self._forward()(batch, batch_idx)
                if loss is not None:
                    self.strategy.make_backward()(loss)
        finally:
            for parameter in self._context.module.parameters():
                parameter.grad = None

    def run(self) -> None:
        """Train for all epochs that are left."""
        context, progress = self._context, self._context.progress
        context.hooks.call("on_fit_start")
        self._zero_grad()
        if self._process_state is None and self.validation is not None:
            sanity_check(context, self.validation)
        if self.validation is not None:
            context.batch_counts["validate"] = self.validation.num_batches()
        if self.batches.num_batches == 0 and context.settings.limit_train_batches in (0, 0.0):
            context.hooks.call("on_fit_end")
            return
        context.metric_log.stage = self.metrics
        context.hooks.call("on_train_start")
        frozen = parts_in_evaluation(context.module)
        if frozen and self._process_state is None:
            logger.warning(
                "%d submodule(s) are in evaluation mode, and stay in it: %s. If that is not meant, call module.train() "
                "before fit",
                len(frozen),
                quoted(frozen[:5]),
            )
        if self._process_state is not None:
            self.state.restore_process(self._process_state)
        self._logged.restart(progress.step)
        resumes = progress.is_in_epoch
        # The end of an epoch belongs to its last step, even where that was the last of all.
        while progress.phase == "end" or not (self._may_stop() or self._is_done()):
            self._run_epoch(resumes)
            progress.finish_epoch()
            resumes = False
        progress.has_ended = True
        context.metric_log.stage = None
        context.hooks.call("on_train_end")
        context.hooks.call("on_fit_end")

    def _is_done(self) -> bool:
        settings, progress = self._context.settings, self._context.progress
        return progress.epoch >= settings.epoch_limit or progress.step >= settings.step_limit

    @property
    def is_long_enough(self) -> bool:
        """Whether the run is as long as it has to be."""
        settings, progress = self._context.settings, self._context.progress
        epochs = settings.min_epochs if settings.min_epochs is not None else int(settings.min_steps is not None)
        return progress.completed_epochs >= epochs and progress.step >= (settings.min_steps or 0)

    def _may_stop(self) -> bool:
        """Whether all processes stop, and the run is as long as it has to be."""
        return self._context.progress.all_stop and self.is_long_enough

    def _run_epoch(self, resumes: bool) -> None:
        context, progress, metric_log = self._context, self._context.progress, self._context.metric_log
        metric_log.stage = self.metrics
        self.step_module.use("training_step")
        if not resumes:
            self._reload("train")
        self.batches.begin_epoch()
        self._has_loss = None
        if not resumes:
            context.hooks.call("on_train_epoch_start")
            progress.start_batches()
        self._follow_optimizers()
        context.batch_counts["train"] = [self.batches.num_batches]
        times = self._times = ValidationTimes(
            context, self.batches.num_batches, self.validation is not None, self._validation_clock()
        )
        if progress.phase == "batches" and self._run_batches(times):
            self._finish_batches()
        if self.validates_next():
            self._validate(times)
        progress.start_end()
        context.end_epoch_of(self.metrics, STAGES["fit"], self._step_monitoring)
        self._agree_to_stop()

    def validates_next(self) -> bool:
        """Whether a validation follows the newest batch; every process calls it, as they may compare their clocks."""
        times, progress = self._times, self._context.progress
        if times is None or progress.validated == progress.batch:
            return False
        return times.is_due(is_last=progress.phase == "end") or (times.is_possible and self._may_stop())

    def _validation_clock(self) -> SharedClock | None:
        seconds = self._context.settings.val_check_seconds
        if seconds is None:
            self._clock = None
        elif self._clock is None or self._clock.seconds != seconds:
            self._clock = SharedClock(seconds)
            self._clock.restart(self._context.progress.total_batches)
        return self._clock

    def _finish_batches(self) -> None:
        """Step the schedulers of epochs, unless the epoch's last batch has already done so."""
        progress = self._context.progress
        if progress.phase == "batches":
            progress.finish_batches()
            self.schedules.step("epoch", progress.completed_epochs)
            warn_of_rare_logs(self._context, self.metrics)
            if self._times is not None:
                self._times.end_batches()

    def _validate(self, times: ValidationTimes) -> None:
        context, progress = self._context, self._context.progress
        assert self.validation is not None
        if progress.validated == progress.batch:
            return
        self._reload("val")
        context.metric_log.keep(self.metrics)
        context.stage, context.pass_begun = "validate", self.validation.position()
        self.validation.run(finished=partial(self._finish_validation, times))
        context.stage, context.metric_log.stage = "train", self.metrics
        self.step_module.use("training_step")
        times.restart()
        self._agree_to_stop()

    def _finish_validation(self, times: ValidationTimes) -> None:
        progress, self._context.pass_begun = self._context.progress, None
        progress.note_validation()
        if times.is_due(is_last=progress.phase == "end") and not progress.is_accumulating:
            self.schedules.step_monitoring("step", progress.step)

    def _step_monitoring(self) -> None:
        progress = self._context.progress
        if progress.phase == "over":
            self.schedules.step_monitoring("epoch", progress.completed_epochs)

    def _zero_grad(self) -> None:
        for optimizer in self.optimization.optimizers:
            optimizer.zero_grad()

    def _agree_to_stop(self) -> None:
        """If one process stops, all stop: the others would wait for it in the next step. Every process calls this."""
        strategy, progress = self.strategy, self._context.progress
        if strategy.world_size > 1:
            wish = torch.tensor(float(progress.should_stop), device=strategy.root_device)
            with strategy.assume_alike():
                progress.should_stop = progress.all_stop = bool(strategy.reduce(wish, "max"))

    def _run_batches(self, times: ValidationTimes) -> bool:
        """Train on the batches that are left of the epoch, with validations in between; returns whether on all."""
        progress, num = self._context.progress, self.batches.num_batches
        batches = self.batches.iterate()
        while True:
            first, wanted = progress.batch, times.batches_left
            ended = self._train(self._context.timed_iterator("[train]next", islice(batches, wanted)), times)
            self._check_finite(self._newest_loss)
            self._newest_loss = None
            self._check_losses(is_whole=ended == "stopped" or wanted is None or progress.batch >= num)
            if ended == "stopped":
                return progress.phase == "end"
            if ended == "skipped":
                return True
            if wanted is None or progress.batch - first < wanted or progress.batch >= num:
                next(batches, None)  # after a validation that came before its end
                break
            if not times.is_due(is_last=False):
                continue
            self._validate(times)
            if self._may_stop():
                return False
        if progress.batch == 0:
            raise ConfigurationError(
                f"train_dataloaders: the training loader is empty in epoch {progress.epoch}. "
                f"{why_empty(self.batches.loader)}"
            )
        return True

    def _train(
        self, batches: Iterator[tuple[int, Any, bool]], times: ValidationTimes
    ) -> Literal["done", "stopped", "skipped"]:
        """Train on ``batches``; returns whether on all of them, or why not."""
        context, progress, step, metrics = self._context, self._context.progress, self._step, self.metrics
        settings, metric_log = context.settings, context.metric_log
        batch_start = context.hooks.bind("on_train_batch_start")
        batch_end = context.hooks.bind("on_train_batch_end") + context.keepers(STAGES["fit"])
        checkpoint_io = context.runtime.strategy.checkpoint_io
        if type(checkpoint_io).check is not CheckpointIO.check:  # it writes in the background, and may fail there
            batch_start = (lambda *_: checkpoint_io.check(), *batch_start)
        self.controls.bind_hooks()
        after_batch = None if self.signals is None else self.signals.after_batch
        schedules, has_step_schedules = self.schedules, self.schedules.has("step")
        counted = 0 if self.is_manual else 1  # in manual optimization, the optimizers count their steps
        count = self.strategy.global_steps if self.strategy.counts_steps else None
        num, is_stream = self.batches.num_batches, math.isinf(self.batches.num_batches)
        exchanges = self.strategy.world_size > 1
        loss: Tensor | None = None
        last_step, log_every = settings.step_limit, settings.log_every_n_steps if metric_log.loggers or exchanges else 0
        try:
            for batch_idx, batch, is_step_end in batches:
                is_skipping, metrics.batch = False, () if batch is None else batch
                for hook in batch_start:
                    is_skipping |= hook(batch, batch_idx) == -1
                if is_skipping:
                    progress.is_accumulating = False
                    if not self.is_manual:
                        self._zero_grad()  # of a window of accumulated batches that ends here
                    return "skipped"
                before = progress.step
                loss = step(batch, batch_idx, is_step_end)
                self._has_loss = bool(self._has_loss) or loss is not None
                progress.batch, progress.is_accumulating = batch_idx + 1, not is_step_end
                is_last = self.batches.is_last if is_stream else batch_idx + 1 == num
                if is_step_end:
                    progress.step = progress.step + counted if count is None else count()
                    if has_step_schedules:
                        # Where validation comes next, its metrics are what the last step's schedulers monitor.
                        waiting = progress.step if times.is_due(is_last) else None
                        for number in range(before + 1, progress.step + 1):
                            schedules.step("step", number)
                            if number != waiting:
                                schedules.step_monitoring("step", number)
                    is_due = bool(log_every) and self._logged.is_due(progress.step, log_every)
                    if is_due or (log_every and progress.all_stop):
                        metric_log.is_step_due = True
                        if metric_log.loggers and self.strategy.is_global_zero and metrics.logger_names():
                            self._check_finite(loss)  # the values of this step are about to be read too
                if is_last:
                    self._finish_batches()
                if batch_end:
                    outputs = self._outputs(loss)
                    for hook in batch_end:
                        hook(outputs, batch, batch_idx)
                elif self._mappings:
                    self._mappings.clear()
                if metric_log.is_step_due:
                    metric_log.send_step(metrics)
                    self._agree_to_stop()
                elif exchanges and not before and progress.step:
                    metrics.exchange()  # what is logged by some processes only is found at the first step
                if after_batch is not None:
                    after_batch()
                if is_step_end and (progress.step >= last_step or (progress.all_stop and self._may_stop())):
                    return "stopped"
        finally:
            metrics.batch = None
            self._newest_loss = loss
            if progress.batch:
                metrics.places.add(metrics.dataloader_idx)
        return "done"

    def _check_finite(self, loss: Tensor | None) -> None:
        """Warn once of a loss that is no number. It waits for the device, so it follows what does so anyway."""
        if not self._has_warned:
            logged = self.metrics.step_values() if self.is_manual else {}
            self._has_warned = warn_of_infinite_loss(loss, logged, self._context.progress)

    def _check_losses(self, is_whole: bool) -> None:
        """Reject an epoch that ended without training on any batch."""
        if is_whole and self._has_loss is False and self._steps_itself:
            raise ConfigurationError(
                f"training_step: returned None for every batch of epoch {self._context.progress.epoch}, so nothing was "
                "trained. End it with `return loss`; None skips a batch."
            )
        if is_whole and self.is_manual and self._has_loss is not None and self.optimization.optimizers:
            warn_of_missing_steps(self._context.module, self._context.progress)

    def _outputs(self, loss: Tensor | None) -> Any:
        """What the last step returned, detached."""
        return map_tensors(Tensor.detach, self._mappings.pop() if self._mappings else loss)
