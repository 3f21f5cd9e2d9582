"""Trainer: the front end with the loop."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import attrs
from torch import nn

from ..accelerators.base import Accelerator
from ..callbacks.base import Callback
from ..checkpoints.base import CheckpointIO
from ..environments.base import ClusterEnvironment
from ..errors import ConfigurationError
from ..hints.argument_checks import check_path, suggest_arguments, suggest_in_methods
from ..plan import Request, resolve_for
from ..precisions.base import Precision
from ..profilers import Profiler, find_profiler
from ..runtime import Runtime
from ..strategies.base import Strategy
from .checkpoint.finished_fit import Results
from .checkpoint.fit_state import find_checkpoint
from .checks import (
    all_callbacks,
    attach_callbacks,
    check_module,
    check_optimization,
    check_predicts,
    check_weights_only,
    checked_callbacks,
)
from .loop.data_sources import DataSource, check_reloading
from .loop.evaluate import evaluated, shown
from .loop.run_stage import evaluate, fit, run_stage
from .loop.signals import read_signals
from .metrics.metric_log import MetricLog
from .metrics.run_loggers import read_loggers
from .module.datamodule import DataModule
from .module.hooks import check_batch_hooks
from .module.module import Module
from .module.plain_module import as_module
from .properties import TrainerProperties
from .run import Run
from .settings import (
    DEFAULT_EPOCHS,
    Limit,
    Settings,
    check_supported,
    with_plugins,
    without_extras,
)
from .step.compilation import check_compile
from .trainer_state import STAGES
from .tuner import tune


@suggest_in_methods(leave=())
class Trainer(TrainerProperties):
    """Trains a :class:`core.Module` with the given hardware, strategy and precision.

    ::

        trainer = Trainer(accelerator="gpu", strategy="ddp", devices=2, precision="bf16-mixed", max_epochs=10)
        trainer.fit(module, train_loader, val_loader)

    The constructor resolves and checks the arguments. Processes start with ``fit``, ``validate``, ``test`` or
    ``predict``; no property starts them.

    Args:
        accelerator: The hardware, as a name or an object; ``"auto"`` selects the best that is present.
        strategy: How to distribute the training, as a name or an object.
        devices: The devices to use on each machine; see :mod:`core.accelerators.devices`.
        num_nodes: The number of machines.
        precision: The dtype policy, as a name or an object.
        checkpoint_io: The checkpoint format, as a name or an object.
        cluster_environment: Where ranks and addresses come from, as a name or an object.
        import_modules: Modules that each process of the run imports first, such as a package that adds a device type to
            torch; by default those of the environment variable ``CORE_IMPORT``.
        auto_select_gpus: Whether ``devices=k`` means devices that no other process uses.
        fast_dev_run: Run one batch of each stage, or so many, to find errors, without checkpoints, early stopping and
            sanity check, and with loggers that write nothing.
        max_epochs: The number of epochs to train; -1 for no limit. ``None`` means 1000, or no limit if ``max_steps`` or
            ``max_time`` is given.
        min_epochs: The number of epochs to train before ``should_stop`` takes effect; ``None`` for 0, or for 1 if
            ``min_steps`` is given.
        max_steps: The number of optimizer steps to train; -1 or ``None`` for no limit.
        min_steps: The number of optimizer steps to train before ``should_stop`` takes effect.
        max_time: The time to train, as ``"DD:HH:MM:SS"``, a ``timedelta``, or its arguments in a dict; adds a
            :class:`core.callbacks.Timer`. The running optimizer step is finished.
        limit_train_batches: The largest number of batches of an epoch, in each process, as an integer; or a fraction of
            all batches as a float from 0.0 to 1.0. 0 trains on none, ``None`` on all.
        limit_val_batches: The same for validation.
        limit_test_batches: The same for test.
        limit_predict_batches: The same for prediction.
        overfit_batches: In training and validation, use only so many batches, or such a fraction, always the same and
            without shuffling; 0 for no such limit.
        val_check_interval: The batches from one validation to the next as an integer, or the fraction of an epoch as a
            float; 1.0 validates at the end of an epoch. Or the time from the end of one to the next, in any of the
            forms of ``max_time``: it comes after the batch at which process 0 finds that the time is over.
        check_val_every_n_epoch: The number of epochs between two epochs with validation; ``None`` counts the batches of
            ``val_check_interval`` over all epochs, and is 1 for a time.
        num_sanity_val_steps: How many batches of validation ``fit`` runs before it trains, to find errors; -1 for all.
            What they log goes nowhere. A resumed ``fit`` runs none.
        accumulate_grad_batches: Batches per optimizer step; each loss is divided by this number, also at the end of an
            epoch, where fewer batches may be left.
        gradient_clip_val: The largest norm or value of gradients, > 0; ``None`` or 0 for no clipping.
        gradient_clip_algorithm: ``"norm"`` or ``"value"``.
        log_every_n_steps: The number of optimizer steps between two calls of the loggers; ``None`` for 50.
        logger: Where metrics go: a name such as ``"csv"``, an object of a class in :mod:`core.loggers` or with a method
            ``log_metrics(metrics, step)``, or a list of both; ``False`` for nowhere. By default, TensorBoard's files if
            tensorboard is installed, otherwise a CSV file, in ``core_logs/version_<n>`` in ``default_root_dir``.
        callbacks: A :class:`core.Callback`, or a list, called in this order; each ModelCheckpoint after all others.
        enable_checkpointing: Whether to add a :class:`ModelCheckpoint` if no callback is one; ``None`` adds one.
        enable_progress_bar: The same for a :class:`ProgressBar`; ``None`` adds one, which writes lines without tqdm.
        enable_model_summary: The same for a :class:`ModelSummary`; ``None`` for ``True``.
        deterministic: Whether torch uses deterministic algorithms during the run; an operation without one raises an
            error, or with ``"warn"`` a warning. ``None`` leaves torch's setting as it is.
        benchmark: Whether torch's backends with this setting try several algorithms during the run and keep the
            fastest. ``None`` leaves it as it is, or means ``False`` with ``deterministic``.
        inference_mode: Whether evaluation runs in :class:`torch.inference_mode`; otherwise under
            :class:`torch.no_grad`, in which a step may enable gradients.
        use_distributed_sampler: Whether the processes divide the batches of each loader, or take loaders as they are.
        profiler: What measures the run: ``"simple"``, ``"advanced"``, ``"pytorch"``, or an object of a class in
            :mod:`core.profilers`.
        detect_anomaly: Whether backward, slower, raises an error that names the forward operation with a NaN gradient.
        barebones: Leave out checkpoints, logger, progress bar, model summary and sanity check. An argument that asks
            for one of them is an error, as are ``fast_dev_run``, ``detect_anomaly`` and ``profiler``.
        plugins: A Precision, CheckpointIO or ClusterEnvironment, or its name, or a list of these: another way to give
            the argument of its kind.
        compile: Whether :func:`torch.compile` compiles the module's steps, or its arguments; its time is logged.
        sync_batchnorm: Whether batch norm layers normalize over the batches of all processes while they train.
        reload_dataloaders_every_n_epochs: Call the methods that return loaders again every so many epochs; 0 for once.
        signals: What ``fit`` does on signals, by name: ``"stop"``, ``"save"``, ``"requeue"``; see ``docs/failures.md``.
        default_root_dir: The directory for files; by default the working directory. A URL is for checkpoints only.

    Raises:
        CoreError: An argument is unknown or has the wrong type, contradicts another one, or names a backend that
            cannot be used here.
    """

    @suggest_arguments
    def __init__(
        self,
        *,
        accelerator: str | Accelerator = "auto",
        strategy: str | Strategy = "auto",
        devices: str | int | list[int] | tuple[int, ...] = "auto",
        num_nodes: str | int = "auto",
        precision: str | int | Precision = "auto",
        checkpoint_io: str | CheckpointIO = "auto",
        cluster_environment: str | ClusterEnvironment = "auto",
        fast_dev_run: int | bool = False,
        max_epochs: int | None = None,
        min_epochs: int | None = None,
        max_steps: int | None = -1,
        min_steps: int | None = None,
        max_time: str | timedelta | dict[str, int] | None = None,
        limit_train_batches: Limit | None = None,
        limit_val_batches: Limit | None = None,
        limit_test_batches: Limit | None = None,
        limit_predict_batches: Limit | None = None,
        overfit_batches: Limit = 0.0,
        val_check_interval: Limit | str | timedelta | dict[str, int] | None = None,
        check_val_every_n_epoch: int | None = 1,
        num_sanity_val_steps: int | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str = "norm",
        log_every_n_steps: int | None = None,
        logger: Any = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        deterministic: bool | str | None = None,
        benchmark: bool | None = None,
        inference_mode: bool = True,
        use_distributed_sampler: bool = True,
        profiler: str | Profiler | None = None,
        detect_anomaly: bool = False,
        barebones: bool = False,
        plugins: Any = None,
        compile: bool | dict[str, Any] | None = None,  # noqa: A002  # the name is torch's
        sync_batchnorm: bool = False,
        reload_dataloaders_every_n_epochs: int = 0,
        signals: dict[str, str] | None = None,
        default_root_dir: str | os.PathLike[str] | None = None,
        import_modules: str | Sequence[str] | None = None,
        auto_select_gpus: bool = False,
    ) -> None:
        # Every argument by its name: a list of them could lack one.
        given = locals() | without_extras(locals())
        if max_epochs is None and max_steps in (None, -1) and max_time is None:
            given["max_epochs"] = DEFAULT_EPOCHS
        self.settings = Settings.read(given).reduced()
        """What the user asked for. Assign to the attributes of the same names to change it."""
        backends = {
            "accelerator": accelerator,
            "strategy": strategy,
            "devices": devices,
            "auto_select_gpus": auto_select_gpus,
            "num_nodes": num_nodes,
            "precision": precision,
            "checkpoint_io": checkpoint_io,
            "cluster_environment": cluster_environment,
        }
        request = Request.read(import_modules=import_modules, **with_plugins(plugins, backends))
        plan = resolve_for("Trainer", request, attrs.asdict(self.settings, recurse=False))
        self.runtime = Runtime.from_plan(plan, sync_batchnorm=sync_batchnorm)
        check_supported(self.settings, self.strategy)
        self._signals = read_signals(signals)
        self.profiler = find_profiler(profiler)
        """The profiler of the run; :class:`core.profilers.PassThroughProfiler` if none was requested."""
        loggers = read_loggers(given["logger"], self.settings.default_root_dir, writes=not fast_dev_run)
        self.run = Run(metric_log=MetricLog(loggers))
        """The files and results of the running or the last run."""
        self._callbacks = all_callbacks(callbacks, self.settings)

    @property
    def signals(self) -> dict[str, Any]:
        """The argument ``signals``, as the running ``fit`` uses it."""
        return self._signals

    # -- stages --------------------------------------------------------------------------------------------------

    def fit(
        self,
        model: nn.Module,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: DataModule | None = None,
        *,
        ckpt_path: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train the module, in place.

        Every ``fit`` starts at epoch 0 and step 0 with new optimizers and the module's present parameters, unless
        ``ckpt_path`` resumes an earlier run.

        Args:
            model: The module to train: a :class:`core.Module`, or a plain ``torch.nn.Module`` with the methods of one
                that it needs, at least ``training_step`` and ``configure_optimizers``.
            train_dataloaders: A DataLoader, or any iterable that yields the batches of an epoch when it is iterated; a
                dict or list of such, whose batches have one of each, the shorter ones being repeated; a
                :class:`core.data.CombinedLoader`; or a :class:`core.DataModule`. By default the module's own
                ``train_dataloader`` is called.
            val_dataloaders: The same for validation, where several loaders are read one after another. Without one
                there is no validation.
            datamodule: What creates the loaders, in place of the two arguments before.
            ckpt_path: A checkpoint to resume from, or ``"last"`` for the newest committed one in the directory of this
                trainer's checkpoints, as process 0 sees it; or one of Lightning from the end of an epoch.
            weights_only: ``True`` or ``None``: a checkpoint is always read with ``weights_only=True``, so that it runs
                no code.

        Raises:
            WrongTypeError: The module is not a ``torch.nn.Module``, or a loader is not iterable.
            ConfigurationError: The module lacks a step, a loader is empty or missing, loaders and a DataModule were
                given, or this trainer is already running.
            CheckpointError: The checkpoint cannot be loaded, or there is none.
        """
        adapted: Any = as_module(model)
        check_weights_only(weights_only)
        validates = val_dataloaders is not None and getattr(adapted, "validation_step", "") is not None
        check_module(adapted, "training_step", "configure_optimizers", *(["validation_step"] if validates else []))
        check_optimization(adapted, self.settings, self.strategy)
        loaders = {"train_dataloaders": ("train", train_dataloaders), "val_dataloaders": ("val", val_dataloaders)}
        source = DataSource.read("fit", adapted, datamodule, **loaders)
        check_reloading(self.settings.reload_dataloaders_every_n_epochs, source)
        tune(self, adapted, source, ckpt_path)
        self._launch(fit, adapted, ckpt_path, source)

    def validate(
        self,
        model: nn.Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        *,
        ckpt_path: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
        verbose: bool = True,
    ) -> list[dict[str, float]]:
        """Run ``validation_step`` on every batch. Raises the same errors as :meth:`fit`.

        Without ``model``, that of the last ``fit`` is used, with the weights of ``ckpt_path`` or its best checkpoint.

        Returns:
            For each loader, the logged values, over all processes; process 0 also prints them unless ``verbose=False``.
        """
        check_weights_only(weights_only)
        return shown(
            self, "validate", verbose, self._evaluate("validate", model, dataloaders, datamodule, ckpt_path)[0]
        )

    def test(
        self,
        model: nn.Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        *,
        ckpt_path: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
        verbose: bool = True,
    ) -> list[dict[str, float]]:
        """Like :meth:`validate`, for ``test_step``."""
        check_weights_only(weights_only)
        return shown(self, "test", verbose, self._evaluate("test", model, dataloaders, datamodule, ckpt_path)[0])

    def predict(
        self,
        model: nn.Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        return_predictions: bool = True,
        *,
        ckpt_path: str | os.PathLike[str] | None = None,
        weights_only: bool | None = None,
    ) -> Any:
        """Like :meth:`validate`, for ``predict_step``.

        Returns:
            The outputs of all processes, in every process: one item per batch, with tensors on the CPU, in the order
            of the loader unless its data set is iterable-style. With several loaders, such a list for each.
            ``None`` with ``return_predictions=False``, which keeps no outputs.
        """
        check_weights_only(weights_only)
        outputs = self._evaluate("predict", model, dataloaders, datamodule, ckpt_path, return_predictions)[1]
        if not return_predictions:
            return None
        return outputs[0] if len(outputs) == 1 else outputs

    def save_checkpoint(
        self, filepath: str | os.PathLike[str], weights_only: bool = False, storage_options: Any = None
    ) -> None:
        """Write a checkpoint of the running ``fit``, or of the last one; every process calls it.

        A run that is resumed from it continues exactly where it was written: after a batch, also within an accumulation
        of gradients, or at the start or end of an epoch. What other callbacks do in the same hook later is not in it.

        Where each process has the whole state, process 0 may call it alone: then the states of the other processes'
        random number generators are not in the checkpoint, which a warning says. After ``fit``, process 0 writes it.

        Args:
            filepath: The path; ``~`` is the home directory.
            weights_only: Write only the module's state and the position; a fit cannot be resumed from it.
            storage_options: Passed to the CheckpointIO.

        Raises:
            ConfigurationError: No ``fit`` is running, and none has ended.
            CheckpointError: It could not be written; or ``fit`` has ended, and the strategy had divided the state among
                processes.
        """
        check_path("filepath", filepath, optional=False)
        path = os.path.expanduser(filepath)
        if self.run.fit_loop is not None:
            self.run.fit_loop.state.save(path, weights_only, storage_options, fails=self.run.interrupted)
        elif self.run.finished is not None:
            self.run.finished.save(self, self.strategy, self.callbacks, path, weights_only, storage_options)
        else:
            raise ConfigurationError("save_checkpoint: no fit has been run. Call fit before, or call it in a hook.")

    # -- running in each process ---------------------------------------------------------------------------------

    def _evaluate(
        self,
        stage: str,
        model: nn.Module | None,
        loader: Any,
        datamodule: DataModule | None,
        ckpt_path: str | os.PathLike[str] | None,
        keeps_outputs: bool = False,
    ) -> tuple[list[dict[str, float]], list[list[Any]]]:
        adapted, ckpt_path = evaluated(self, stage, model, ckpt_path)
        if stage == "predict":
            check_predicts(adapted)
        else:
            check_module(adapted, STAGES[stage].step)
        source = DataSource.read(stage, adapted, datamodule, dataloaders=(STAGES[stage].kind, loader))
        stage_of = partial(evaluate, keeps_outputs=keeps_outputs)
        result: tuple[list[dict[str, float]], list[list[Any]]] = self._launch(stage_of, adapted, ckpt_path, source)
        return result

    def _launch(
        self,
        stage: Callable[..., Any],
        module: Module,
        ckpt_path: str | os.PathLike[str] | None,
        source: DataSource,
    ) -> Any:
        """Run ``stage`` in every process; afterwards trainer and module here are as they are in process 0."""
        if self.run.context is not None:
            raise ConfigurationError("Trainer: this trainer is already running. Use another Trainer within its hooks.")
        check_path("ckpt_path", ckpt_path)
        found = self.ckpt_path
        if ckpt_path is not None and self.plan.runs_function and self.plan.num_nodes == 1:
            # Raises here what would otherwise be raised in started processes.
            found = find_checkpoint(ckpt_path, self)
        check_compile(module, self.settings, self.strategy, self.plan)
        check_batch_hooks(self.strategy, module, source.datamodule)
        self._callbacks, self.profiler = checked_callbacks(self.callbacks), find_profiler(self.profiler)
        if not self.is_trial:
            attach_callbacks(self.callbacks, module)
        module._last_trainer = weakref.ref(self)
        run = self.run = self.run.following(source.stage, module, found)
        try:
            outcome: Any = self.runtime.launch(run_stage, self, stage, module, ckpt_path, source)
        except BaseException:
            run.interrupted = True
            raise
        if not isinstance(outcome, Results):
            return outcome
        run.progress, run.batch_counts = outcome.progress, outcome.batch_counts
        outer, module._trainer = module._trainer, self
        try:
            outcome.restore(module, run.metric_log, self.callbacks)
        finally:
            module._trainer = outer
        if outcome.finished is not None:
            run.finished = attrs.evolve(outcome.finished, module=module)
        run.metric_log.adopt_versions(outcome.logger_versions)
        return outcome.returned

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "run": self.run.detached()}
