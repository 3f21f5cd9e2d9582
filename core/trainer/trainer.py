"""Trainer: the front end with the loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from core.accelerators.base import Accelerator
from core.checkpoints.base import CheckpointIO
from core.environments.base import ClusterEnvironment
from core.errors import ConfigurationError, quoted
from core.plan import Plan
from core.precisions.base import Precision
from core.precisions.clipping import ALGORITHMS
from core.runtime import Runtime
from core.strategies.base import Strategy
from core.trainer.arguments import all_callbacks, all_loggers, check_loader, check_module, check_predicts
from core.trainer.checkpointing import ModelCheckpoint
from core.trainer.evaluate import STEPS, EvaluationLoop
from core.trainer.fit import FitLoop
from core.trainer.handover import hand_back, hand_over
from core.trainer.hooks import Callback, bind_callbacks
from core.trainer.metrics import MetricLog
from core.trainer.module import Module, StepModule
from core.trainer.state import find_checkpoint, load_module, save_state
from core.trainer.words import check_clip_value, check_count, check_flag, check_path

__all__ = ["Logger", "Trainer"]


class Logger(Protocol):
    """Where metrics go; called in process 0 only."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Take ``metrics`` as they stood after ``step`` optimizer steps."""


class _TrainerRuntime(Runtime):
    """A Runtime whose loop is the Trainer's."""

    _runs_own_loop = False

    def check_clip_algorithm(self, algorithm: str) -> None:
        """Refuse how gradients are to be limited where the strategy cannot do it, before processes start."""
        self._strategy.check_clip_algorithm(algorithm, "gradient_clip_algorithm")


class Trainer:
    """Trains a :class:`core.Module` on the hardware, with the distribution and in the precision that were named.

    ::

        trainer = Trainer(accelerator="gpu", strategy="ddp", devices=2, precision="bf16-mixed", max_epochs=10)
        trainer.fit(module, train_loader, val_loader)

    The words are resolved, and refused where they are wrong, on construction; processes start with ``fit``,
    ``validate``, ``test`` or ``predict``.

    Args:
        accelerator: As in :class:`core.Runtime`, and so are the next six.
        strategy: As said.
        devices: As said.
        num_nodes: As said.
        precision: As said.
        checkpoint_io: As said.
        cluster_environment: As said.
        max_epochs: Epochs to train; ``None`` for no limit. 1000 where neither this nor ``max_steps`` is given.
        max_steps: Optimizer steps to train; ``None`` for no limit.
        accumulate_grad_batches: Batches an optimizer step. Each counts with its share of so many, also where an epoch
            ends with fewer.
        gradient_clip_val: Largest norm or value of gradients, above 0; ``None`` for no limit.
        gradient_clip_algorithm: ``"norm"`` or ``"value"``.
        check_val_every_n_epoch: Epochs between validations.
        limit_train_batches: Batches of an epoch at most, in each process.
        limit_val_batches: Likewise for validation.
        limit_test_batches: Likewise for test.
        limit_predict_batches: Likewise for prediction.
        log_every_n_steps: Optimizer steps between two reports to the loggers.
        logger: Where metrics go: one object with ``log_metrics(metrics, step)``, or several.
        callbacks: What acts beside the module, in this order; but each :class:`ModelCheckpoint` after all others, so
            that what they did is in its checkpoint.
        enable_checkpointing: Whether a :class:`ModelCheckpoint` is added where none is among the callbacks.
        enable_progress_bar: Whether a :class:`ProgressBar` is added where none is among the callbacks; ``None`` for
            where tqdm is installed.
        default_root_dir: Where files go; the working directory unless given.

    Raises:
        CoreError: A word is unknown, of the wrong kind, contradicted, or names what cannot be used here.
    """

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
        max_epochs: int | None = None,
        max_steps: int | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str = "norm",
        check_val_every_n_epoch: int = 1,
        limit_train_batches: int | None = None,
        limit_val_batches: int | None = None,
        limit_test_batches: int | None = None,
        limit_predict_batches: int | None = None,
        log_every_n_steps: int = 50,
        logger: Logger | Sequence[Logger] | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        enable_checkpointing: bool = True,
        enable_progress_bar: bool | None = None,
        default_root_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        check_count("max_epochs", max_epochs, low=0, optional=True)
        check_count("max_steps", max_steps, low=0, optional=True)
        check_count("accumulate_grad_batches", accumulate_grad_batches, low=1)
        check_count("check_val_every_n_epoch", check_val_every_n_epoch, low=1)
        check_count("limit_train_batches", limit_train_batches, low=1, optional=True)
        check_count("limit_val_batches", limit_val_batches, low=1, optional=True)
        check_count("limit_test_batches", limit_test_batches, low=1, optional=True)
        check_count("limit_predict_batches", limit_predict_batches, low=1, optional=True)
        check_count("log_every_n_steps", log_every_n_steps, low=1)
        check_clip_value(gradient_clip_val)
        check_flag("enable_checkpointing", enable_checkpointing)
        check_flag("enable_progress_bar", enable_progress_bar, optional=True)
        check_path("default_root_dir", default_root_dir)
        if gradient_clip_algorithm not in ALGORITHMS:
            raise ConfigurationError(
                f"gradient_clip_algorithm={gradient_clip_algorithm!r}: unknown. Valid: {quoted(ALGORITHMS)}."
            )
        runtime = _TrainerRuntime(
            accelerator=accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            checkpoint_io=checkpoint_io,
            cluster_environment=cluster_environment,
        )
        if gradient_clip_val is not None:
            runtime.check_clip_algorithm(gradient_clip_algorithm)
        self.runtime: Runtime = runtime
        self.max_epochs = 1000 if max_epochs is None and max_steps is None else max_epochs
        self.max_steps = max_steps
        self.accumulate_grad_batches = accumulate_grad_batches
        self.gradient_clip_val = gradient_clip_val
        self.gradient_clip_algorithm = gradient_clip_algorithm
        self.check_val_every_n_epoch = check_val_every_n_epoch
        self.limit_train_batches = limit_train_batches
        self.limit_val_batches = limit_val_batches
        self.limit_test_batches = limit_test_batches
        self.limit_predict_batches = limit_predict_batches
        self.log_every_n_steps = log_every_n_steps
        self.default_root_dir = os.fspath(os.getcwd() if default_root_dir is None else default_root_dir)
        self.loggers: list[Logger] = all_loggers(logger)
        self.callbacks = all_callbacks(callbacks, enable_progress_bar, enable_checkpointing)

        self.current_epoch = 0
        """The running epoch, from 0; after ``fit``, how many were completed."""
        self.global_step = 0
        """Optimizer steps taken so far; one whose batches were all skipped counts."""
        self.should_stop = False
        """Set it to end ``fit`` after the running optimizer step."""
        self.prog_bar_metrics: set[str] = set()
        """Names in :attr:`callback_metrics` that were logged for the progress bar."""
        self.metric_log: MetricLog | None = None
        """Takes what the module logs; ``None`` where no epoch or evaluation is running."""
        self._metrics: dict[str, torch.Tensor] = {}
        self._fit_loop: FitLoop | None = None
        self._is_running = False

    # -- what a user calls ---------------------------------------------------------------------------------------

    def fit(
        self,
        module: Module,
        train_dataloaders: Any,
        val_dataloaders: Any = None,
        *,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Train, from the beginning: each ``fit`` counts epochs and steps from 0 and configures new optimizers.

        What goes on is the module as it is, or, with ``ckpt_path``, the run that wrote the checkpoint.

        Args:
            module: What is trained, in place.
            train_dataloaders: A DataLoader, or any iterable that gives batches each time it is iterated, once an epoch.
            val_dataloaders: Likewise for validation, or ``None``.
            ckpt_path: A checkpoint to resume from, or ``"last"`` for the newest committed one where this trainer
                writes its own.

        Raises:
            WrongTypeError: The module is no :class:`core.Module`, or the loaders none.
            ConfigurationError: The module lacks a step, a loader gave no batch, or this trainer is running already.
            CheckpointError: The checkpoint cannot be used.
        """
        steps = ["training_step", "configure_optimizers"] + (["validation_step"] if val_dataloaders is not None else [])
        check_module(module, *steps)
        check_loader("train_dataloaders", train_dataloaders)
        if val_dataloaders is not None:
            check_loader("val_dataloaders", val_dataloaders)
        self._run(_fit, module, train_dataloaders, val_dataloaders, self._resolve(ckpt_path))

    def validate(
        self, module: Module, dataloaders: Any, *, ckpt_path: str | os.PathLike[str] | None = None
    ) -> dict[str, float]:
        """Run ``validation_step`` on every batch; returns what was logged, of all processes. Raises as :meth:`fit`."""
        return self._evaluate("validate", module, dataloaders, ckpt_path)[0]

    def test(
        self, module: Module, dataloaders: Any, *, ckpt_path: str | os.PathLike[str] | None = None
    ) -> dict[str, float]:
        """Run ``test_step`` on every batch; returns what was logged, of all processes. Raises as :meth:`fit`."""
        return self._evaluate("test", module, dataloaders, ckpt_path)[0]

    def predict(
        self, module: Module, dataloaders: Any, *, ckpt_path: str | os.PathLike[str] | None = None
    ) -> list[Any]:
        """Run ``predict_step`` on every batch. Raises as :meth:`fit`.

        Returns:
            What it returned, tensors on the CPU, one item a batch, of all processes and in every process; in the
            loader's order where it is no stream.
        """
        return self._evaluate("predict", module, dataloaders, ckpt_path)[1]

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint of the running ``fit``; every process calls it.

        ``fit`` resumes from one that is written when all of an epoch's batches were trained on, or none: in the hooks
        of its start, of validation and of its end.

        Raises:
            ConfigurationError: No ``fit`` is running.
            CheckpointError: It could not be written.
        """
        if self._fit_loop is None:
            raise ConfigurationError("save_checkpoint: no fit is running. Valid: from a callback or the module.")
        save_state(self._fit_loop, path)

    @property
    def plan(self) -> Plan:
        """What runs, on what, and why."""
        return self.runtime.plan

    @property
    def strategy(self) -> Strategy:
        """The live strategy."""
        return self.runtime.strategy

    @property
    def is_global_zero(self) -> bool:
        """Whether this is process 0 of all."""
        return self.runtime.is_main_process

    @property
    def callback_metrics(self) -> dict[str, torch.Tensor]:
        """The newest value of everything that was logged, as scalars."""
        running = {} if self.metric_log is None else self.metric_log.step_values()
        return {**self._metrics, **_as_tensors(running)}

    @property
    def num_training_batches(self) -> int | None:
        """How many batches an epoch of the running ``fit`` has, in this process; ``None`` where nobody can tell."""
        return None if self._fit_loop is None else self._fit_loop.num_batches

    @property
    def checkpoint_callback(self) -> ModelCheckpoint | None:
        """The first callback that writes checkpoints."""
        return next((callback for callback in self.callbacks if isinstance(callback, ModelCheckpoint)), None)

    # -- what the loops call -------------------------------------------------------------------------------------

    def take_metrics(self, log: MetricLog) -> None:
        """Publish what an epoch or an evaluation gave; every process calls it."""
        self._metrics.update(_as_tensors(log.step_values()))
        values = log.finish_epoch()
        self._metrics.update(values)
        self.prog_bar_metrics |= log.prog_bar_names() & set(self._metrics)
        self.send_to_loggers(values)

    def send_to_loggers(self, metrics: Mapping[str, torch.Tensor | float]) -> None:
        """Hand ``metrics`` to each logger, in process 0; to read them is to wait for the device."""
        if metrics and self.loggers and self.is_global_zero:
            values = {name: float(value) for name, value in metrics.items()}
            for logger in self.loggers:
                logger.log_metrics(dict(values), self.global_step)

    def keyed_callbacks(self) -> Iterator[tuple[str, Callback]]:
        """The callbacks under the names that checkpoints know them by."""
        seen: dict[str, int] = {}
        for callback in self.callbacks:
            name = type(callback).__qualname__
            seen[name] = seen.get(name, 0) + 1
            yield f"{name}#{seen[name]}", callback

    # -- running in each process ---------------------------------------------------------------------------------

    def _resolve(self, ckpt_path: str | os.PathLike[str] | None) -> str | None:
        checkpoints = self.checkpoint_callback or ModelCheckpoint()
        return find_checkpoint(ckpt_path, checkpoints.directory(self))

    def _evaluate(
        self, stage: str, module: Module, loader: Any, ckpt_path: str | os.PathLike[str] | None
    ) -> tuple[dict[str, float], list[Any]]:
        if stage == "predict":
            check_predicts(module)
        else:
            check_module(module, STEPS[stage])
        check_loader("dataloaders", loader)
        path = self._resolve(ckpt_path)
        result: tuple[dict[str, float], list[Any]] = self._run(_evaluate, stage, module, loader, path)
        return result

    def _run(self, stage: Callable[..., Any], *args: Any) -> Any:
        """Run ``stage`` in every process; what it did to trainer and module is done here as well."""
        if self._is_running:
            raise ConfigurationError("Trainer: it is running already. Valid: another Trainer, or this one afterwards.")
        handed_back: Any = self.runtime.launch(_in_process, self, stage, *args)
        return hand_back(handed_back, self, args)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "metric_log": None, "_fit_loop": None}


def _in_process(runtime: Runtime, trainer: Trainer, stage: Callable[..., Any], *args: Any) -> Any:
    """What each process runs: the stage, and the end of the run whichever way it ends."""
    trainer.runtime = runtime
    module = next(arg for arg in args if isinstance(arg, Module))
    outer, module._trainer = module._trainer, trainer
    trainer._is_running = True
    try:
        handed_over = hand_over(stage(trainer, *args), trainer, module)
    except BaseException as error:
        try:
            for hook in bind_callbacks("on_exception", trainer, module, trainer.callbacks):
                hook(error)
        finally:
            runtime.teardown(failed=True)
        raise
    finally:
        module._trainer = outer
        trainer.metric_log = trainer._fit_loop = None
        trainer._is_running = False
    runtime.teardown()
    return handed_over


def _fit(trainer: Trainer, module: Module, train: Any, val: Any, ckpt_path: str | None) -> None:
    trainer.current_epoch = trainer.global_step = 0
    trainer.should_stop = False
    trainer._metrics, trainer.prog_bar_metrics = {}, set()
    trainer._fit_loop = FitLoop(trainer, module, train, val, ckpt_path)
    trainer._fit_loop.run()


def _evaluate(
    trainer: Trainer, stage: str, module: Module, loader: Any, ckpt_path: str | None
) -> tuple[dict[str, float], list[Any]]:
    runtime = trainer.runtime
    step_module = StepModule.of(module)
    model = runtime.prepare(step_module)
    if ckpt_path is not None:
        load_module(runtime.strategy, module, ckpt_path)
    trainer._metrics = {}
    outputs = EvaluationLoop(trainer, module, step_module, model, stage, loader).run()
    return {name: float(value) for name, value in trainer.callback_metrics.items()}, outputs


def _as_tensors(values: Mapping[str, torch.Tensor | float]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(value) for name, value in values.items()}
