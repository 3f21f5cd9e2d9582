"""Properties of a Trainer, none of which starts anything."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import torch
from torch.optim import Optimizer

from ..accelerators.base import Accelerator
from ..callbacks.base import Callback, Checkpoint
from ..callbacks.display.progress_bar import ProgressBar
from ..callbacks.early_stopping import EarlyStopping
from ..callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from ..data import PreparedCombined
from ..errors import ConfigurationError
from ..hints.attributes import KnownAttributes
from ..loggers.base import Logger
from ..plan import Plan
from ..precisions.base import Precision
from ..profilers import Profiler
from ..runtime import Runtime
from ..strategies.base import Strategy
from .checks import checked_callbacks
from .loop.evaluate import EvaluationLoop
from .loop.fit import FitLoop
from .metrics.metric_log import MetricLog
from .metrics.run_loggers import read_loggers
from .module.datamodule import DataModule
from .module.module import Module
from .run import Run
from .settings import Limit, Setting, Settings
from .step.configure_optimizers import Optimization
from .step.lr_schedulers import LRSchedulerConfig
from .trainer_state import Progress, RunningStage, TrainerFn, TrainerState, TrainerStatus


class TrainerProperties(KnownAttributes):
    """The properties of :class:`core.Trainer`. They start no process, write no file and run no collective."""

    runtime: Runtime
    settings: Settings
    run: Run
    profiler: Profiler
    _callbacks: list[Callback]

    is_trial = False
    """Whether this is a short run before ``fit``, in which :class:`core.callbacks.LearningRateFinder` or
    :class:`core.callbacks.BatchSizeFinder` tries out a setting."""

    fast_dev_run = Setting[int | bool]()
    max_epochs = Setting[int]()
    min_epochs = Setting[int | None]()
    max_steps = Setting[int]()
    min_steps = Setting[int | None]()
    limit_train_batches = Setting[Limit | None]()
    limit_val_batches = Setting[Limit | None]()
    limit_test_batches = Setting[Limit | None]()
    limit_predict_batches = Setting[Limit | None]()
    overfit_batches = Setting[Limit]()
    val_check_interval = Setting[Limit | str | timedelta | dict[str, int]]()
    check_val_every_n_epoch = Setting[int | None]()
    num_sanity_val_steps = Setting[int]()
    accumulate_grad_batches = Setting[int]()
    gradient_clip_val = Setting[float | None]()
    gradient_clip_algorithm = Setting[str]()
    log_every_n_steps = Setting[int]()
    default_root_dir = Setting[str]()

    # -- processes, devices and the module -------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """What runs, on which devices, and why."""
        return self.runtime.plan

    @property
    def strategy(self) -> Strategy:
        """The strategy. Outside a run, its methods that need the processes cannot be used."""
        return self.runtime.strategy

    @property
    def accelerator(self) -> Accelerator:
        """The hardware."""
        return self.strategy.accelerator

    @property
    def precision(self) -> str:
        """The name of the dtype policy, such as ``"bf16-mixed"``."""
        return self.plan.precision.name

    @property
    def precision_plugin(self) -> Precision:
        """The dtype policy itself."""
        return self.strategy.precision

    @property
    def world_size(self) -> int:
        """The number of processes, on all machines."""
        return self.strategy.world_size

    @property
    def global_rank(self) -> int:
        """The number of this process among all processes, from 0."""
        return self.strategy.global_rank

    @property
    def local_rank(self) -> int:
        """The number of this process on its machine, from 0."""
        return self.strategy.local_rank

    @property
    def node_rank(self) -> int:
        """The number of this machine, from 0."""
        return self.strategy.node_rank

    @property
    def is_global_zero(self) -> bool:
        """Whether this is process 0 among all processes."""
        return self.runtime.is_main_process

    @property
    def num_nodes(self) -> int:
        """The number of machines."""
        return self.plan.num_nodes

    @property
    def num_devices(self) -> int:
        """The number of devices that are used on each machine."""
        return len(self.plan.devices)

    @property
    def device_ids(self) -> list[int]:
        """The indices of the devices that are used on each machine, by local rank."""
        indices = [torch.device(device).index for device in self.plan.devices]
        return [number if index is None else index for number, index in enumerate(indices)]

    @property
    def lightning_module(self) -> Module | None:
        """The module of the running or the last run; ``None`` if there was none, or it no longer exists."""
        return None if self.run.module is None else self.run.module()

    @property
    def model(self) -> Module | None:
        """The module without the wrappers of a strategy."""
        return self.lightning_module

    @property
    def interrupted(self) -> bool:
        """Whether an exception, such as a KeyboardInterrupt, has ended the running or the last run."""
        return self.run.interrupted

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Call the built-in ``print``, in process 0 only."""
        if self.is_global_zero:
            print(*args, **kwargs)  # noqa: T201  what the user asked for

    # -- loggers and metrics ---------------------------------------------------------------------------------------

    @property
    def metric_log(self) -> MetricLog:
        """Everything that the module logs goes through this object."""
        return self.run.metric_log

    @property
    def loggers(self) -> list[Logger]:
        """Where metrics go; may be set to what the argument ``logger`` takes."""
        return self.metric_log.loggers

    @loggers.setter
    def loggers(self, loggers: Any) -> None:
        self.metric_log.loggers = read_loggers(loggers or False, self.settings.default_root_dir, "loggers")

    @property
    def logger(self) -> Logger | None:
        """The first logger; ``None`` if there is none. May be set."""
        return self.metric_log.loggers[0] if self.metric_log.loggers else None

    @logger.setter
    def logger(self, logger: Any) -> None:
        self.metric_log.loggers = read_loggers(logger or False, self.settings.default_root_dir)

    @property
    def log_dir(self) -> str | None:
        """The folder of the first logger's files; :attr:`default_root_dir` if there is no logger.

        During a run it is the same in every process. ``None`` if the logger's library decides where its files are.
        """
        return self.settings.default_root_dir if self.logger is None else self.logger.log_dir

    @property
    def callback_metrics(self) -> dict[str, torch.Tensor]:
        """The newest value of everything that was logged, as scalars."""
        return self.metric_log.latest

    @property
    def logged_metrics(self) -> dict[str, torch.Tensor]:
        """The newest values that go to loggers, by the names that loggers get, as scalars."""
        return self.metric_log.logged

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """The newest values that were logged for the progress bar; reading them waits for the device."""
        return self.metric_log.shown

    @property
    def prog_bar_metrics(self) -> set[str]:
        """The names in :attr:`callback_metrics` that were logged for the progress bar."""
        return self.metric_log.prog_bar_names

    # -- the run ---------------------------------------------------------------------------------------------------

    @property
    def callbacks(self) -> list[Callback]:
        """The callbacks, in the order in which they are called; may be set to what the argument takes."""
        return self._callbacks

    @callbacks.setter
    def callbacks(self, callbacks: Any) -> None:
        self._callbacks = checked_callbacks(callbacks)

    @property
    def progress(self) -> Progress:
        """The position of the running or the last ``fit``."""
        return self.run.progress

    @property
    def datamodule(self) -> DataModule | None:
        """What creates the loaders of the running or the last run; ``None`` if loaders were passed."""
        return self.run.datamodule

    @property
    def current_epoch(self) -> int:
        """The running epoch, from 0; after ``fit``, the number of epochs, with one that it ended within."""
        return self.progress.begun_epochs

    @property
    def global_step(self) -> int:
        """Optimizer steps taken so far. A step counts even if all its batches were skipped."""
        return self.progress.step

    @property
    def should_stop(self) -> bool:
        """Whether ``fit`` ends after the running optimizer step; may be set.

        One of several processes may set it alone. They all end after the next step that is a multiple of
        ``log_every_n_steps``, or the next validation or end of an epoch.
        """
        return self.progress.should_stop

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        self.progress.should_stop = bool(value)
        if self.world_size == 1:
            self.progress.all_stop = bool(value)

    @property
    def num_training_batches(self) -> float:
        """The batches of an epoch in this process, as an integer, from the start of ``fit``; infinite if not known."""
        if self.run.fit_loop is None:
            return self.run.batch_counts.get("train", [math.inf])[0]
        return self.run.fit_loop.batches.num_batches

    @property
    def train_dataloader(self) -> Any:
        """The prepared loader of the running ``fit``, or loaders in the user's structure; ``None`` if there is none."""
        loader = None if self.run.fit_loop is None else self.run.fit_loop.batches.loader
        return loader.iterables if isinstance(loader, PreparedCombined) else loader

    @property
    def val_dataloaders(self) -> Any:
        """The prepared validation loaders, in the structure of the user's; ``None`` if there are none."""
        return self._dataloaders("validate")

    @property
    def test_dataloaders(self) -> Any:
        """The prepared loaders of ``test``, like :attr:`val_dataloaders`."""
        return self._dataloaders("test")

    @property
    def predict_dataloaders(self) -> Any:
        """The prepared loaders of ``predict``, like :attr:`val_dataloaders`."""
        return self._dataloaders("predict")

    @property
    def num_val_batches(self) -> list[float]:
        """The batches of each loader of validation in this process; infinite if not known.

        Empty until the sanity check of ``fit`` is over, or ``validate`` begins; they stay after it.
        """
        return self._num_batches("validate")

    @property
    def num_sanity_val_batches(self) -> list[float]:
        """The number of batches of each loader in the sanity check, like :attr:`num_val_batches`."""
        return self._num_batches("sanity_check")

    @property
    def num_test_batches(self) -> list[float]:
        """The number of batches of each loader in ``test``, like :attr:`num_val_batches`."""
        return self._num_batches("test")

    @property
    def num_predict_batches(self) -> list[float]:
        """The number of batches of each loader in ``predict``, like :attr:`num_val_batches`."""
        return self._num_batches("predict")

    def _evaluation_of(self, stage: str) -> EvaluationLoop | None:
        loop = self.run.evaluation if self.run.fit_loop is None else self.run.fit_loop.validation
        return loop if loop is not None and loop.stage.name == stage else None

    def _dataloaders(self, stage: str) -> Any:
        loop = self._evaluation_of(stage)
        return None if loop is None else loop.dataloaders

    def _num_batches(self, stage: str) -> list[float]:
        return list(self.run.batch_counts.get(stage, ()))

    @property
    def enable_validation(self) -> bool:
        """Whether the running ``fit`` validates."""
        return self.run.fit_loop is not None and self.run.fit_loop.validation is not None

    @property
    def is_last_batch(self) -> bool:
        """Whether the newest training batch is the last of its epoch."""
        return self.run.fit_loop is not None and self.run.fit_loop.batches.is_last

    @property
    def training(self) -> bool:
        """Whether it trains now: in ``fit``, outside of validation."""
        return self.run.stage == "train"

    @property
    def validating(self) -> bool:
        """Whether it validates now, in ``validate`` or ``fit``; the sanity check does not count."""
        return self.run.stage == "validate"

    @property
    def sanity_checking(self) -> bool:
        """Whether it runs the validation batches that only check, before ``fit`` trains."""
        return self.run.stage == "sanity_check"

    @property
    def testing(self) -> bool:
        """Whether ``test`` is running."""
        return self.run.stage == "test"

    @property
    def predicting(self) -> bool:
        """Whether ``predict`` is running."""
        return self.run.stage == "predict"

    @property
    def evaluating(self) -> bool:
        """Whether it validates or tests now; the sanity check counts."""
        return self.run.stage in ("validate", "test", "sanity_check")

    @property
    def state(self) -> TrainerState:
        """What is running, and how the last run has ended. It does not change afterwards: read it again."""
        status = TrainerStatus.RUNNING if self.run.context is not None else TrainerStatus.FINISHED
        if self.run.interrupted:
            status = TrainerStatus.INTERRUPTED
        elif self.run.function is None:
            status = TrainerStatus.INITIALIZING
        return TrainerState(
            status=status,
            fn=None if self.run.function is None else TrainerFn(self.run.function),
            stage=None if self.run.stage is None else RunningStage(self.run.stage),
        )

    @property
    def received_sigterm(self) -> bool:
        """Whether the running or the last ``fit`` received SIGTERM and handles it; see the argument ``signals``.

        In a run of several processes, the others know it once all have agreed when to act on it.
        """
        signals = None if self.run.fit_loop is None else self.run.fit_loop.signals
        return self.run.received_sigterm if signals is None else signals.has_received("SIGTERM")

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint that the running or the last run was started from; ``None`` if none was."""
        return self.run.ckpt_path

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers of the running or the last ``fit``, as the strategy set them up.

        Empty after a ``fit`` that failed.

        Raises:
            ConfigurationError: The processes of the ``fit`` have ended, as those of ``ddp_spawn`` do.
        """
        return list(self._optimization("optimizers").optimizers)

    @property
    def lr_scheduler_configs(self) -> list[LRSchedulerConfig]:
        """The learning rate schedulers of the same ``fit``, and when each is stepped."""
        return list(self._optimization("lr_scheduler_configs").schedules)

    def _optimization(self, asked: str) -> Optimization:
        if self.run.fit_loop is not None:
            return self.run.fit_loop.optimization
        if self.run.finished is None:
            return Optimization()
        state = self.run.finished.state  # kept for save_checkpoint after fit
        if state is None:
            raise ConfigurationError(
                f"{asked}: the fit ran in processes that have ended, and what they stepped ended with them. Read it in "
                "a hook, such as on_fit_end. A LearningRateMonitor leaves the rates in trainer.callback_metrics, and "
                "trainer.save_checkpoint(path) writes the states."
            )
        return state.optimization

    @property
    def estimated_stepping_batches(self) -> int | float:
        """The optimizer steps of the running or the last ``fit``, as far as they are known; ``inf`` if it has no end.

        Raises:
            ConfigurationError: No ``fit`` was started, or the loader has no length and ``max_steps`` is not set.
        """
        settings = self.settings
        if self.run.fit_loop is None and "train" not in self.run.batch_counts:
            raise ConfigurationError(
                "estimated_stepping_batches: no fit was started. Call it in configure_optimizers or later."
            )
        batches = self.num_training_batches
        if math.isinf(settings.epoch_limit):
            return settings.step_limit
        if math.isinf(batches):
            if math.isinf(settings.step_limit):
                raise ConfigurationError(
                    "estimated_stepping_batches: the training loader has no length. Set max_steps, or "
                    "limit_train_batches."
                )
            return settings.step_limit
        schedule = next((one for one in self.callbacks if isinstance(one, GradientAccumulationScheduler)), None)
        if schedule is None:
            steps = math.ceil(batches / settings.accumulate_grad_batches) * settings.epoch_limit
        else:
            counts = map(schedule.get_accumulate_grad_batches, range(int(settings.epoch_limit)))
            steps = sum(math.ceil(batches / count) for count in counts)
        return int(min(steps, settings.step_limit))

    @property
    def scaler(self) -> Any:
        """The object that scales the loss; ``None`` if the precision does not scale it."""
        return getattr(self.strategy.precision, "scaler", None)

    def running_fit(self, asked: str) -> FitLoop:
        """The loop of the running ``fit``, for what a Module asks of it.

        Args:
            asked: What was called.

        Raises:
            ConfigurationError: No ``fit`` is running.
        """
        if self.run.fit_loop is None:
            raise ConfigurationError(f"{asked}: no fit is running. Call it in training_step or in a hook of fit.")
        return self.run.fit_loop

    @property
    def checkpoint_callback(self) -> Checkpoint | None:
        """The first callback that writes checkpoints."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def checkpoint_callbacks(self) -> list[Checkpoint]:
        """All callbacks that write checkpoints."""
        return [callback for callback in self.callbacks if isinstance(callback, Checkpoint)]

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first :class:`core.callbacks.EarlyStopping`."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[EarlyStopping]:
        """All of them."""
        return [callback for callback in self.callbacks if isinstance(callback, EarlyStopping)]

    @property
    def progress_bar_callback(self) -> ProgressBar | None:
        """The first :class:`core.callbacks.ProgressBar`."""
        return next((callback for callback in self.callbacks if isinstance(callback, ProgressBar)), None)
