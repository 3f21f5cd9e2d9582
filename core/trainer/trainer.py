"""Trainer: the front end with the loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from core.accelerators.base import Accelerator
from core.checkpoints.base import CheckpointIO
from core.environments.base import ClusterEnvironment
from core.errors import ConfigurationError, WrongTypeError, quoted
from core.precisions.base import Precision
from core.precisions.clipping import ALGORITHMS
from core.runtime import Runtime
from core.runtime.loader import prepare_loader
from core.strategies.base import Strategy
from core.trainer.checkpointing import ModelCheckpoint
from core.trainer.evaluate import STEPS, EvaluationLoop
from core.trainer.fit import FitLoop
from core.trainer.handover import hand_back, hand_over
from core.trainer.hooks import Callback
from core.trainer.metrics import MetricLog
from core.trainer.module import Module, StepModule
from core.trainer.progress import ProgressBar
from core.trainer.state import find_checkpoint, save_state

__all__ = ["Logger", "Trainer"]


class Logger(Protocol):
    """Where metrics go; called in process 0 only."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Take ``metrics`` as they stood after ``step`` optimizer steps."""


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
        accumulate_grad_batches: Batches an optimizer step; their gradients are averaged.
        gradient_clip_val: Largest norm or value of gradients; ``None`` for no limit.
        gradient_clip_algorithm: ``"norm"`` or ``"value"``.
        check_val_every_n_epoch: Epochs between validations.
        limit_train_batches: Batches of an epoch at most, in each process.
        limit_val_batches: Likewise for validation.
        limit_test_batches: Likewise for test.
        limit_predict_batches: Likewise for prediction.
        log_every_n_steps: Optimizer steps between two reports to the loggers.
        logger: Where metrics go: one object with ``log_metrics(metrics, step)``, or several.
        callbacks: What acts beside the module.
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
        for name, value in (("max_epochs", max_epochs), ("max_steps", max_steps)):
            _check_count(name, value, low=0)
        for name, value in (
            ("accumulate_grad_batches", accumulate_grad_batches),
            ("check_val_every_n_epoch", check_val_every_n_epoch),
            ("limit_train_batches", limit_train_batches),
            ("limit_val_batches", limit_val_batches),
            ("limit_test_batches", limit_test_batches),
            ("limit_predict_batches", limit_predict_batches),
            ("log_every_n_steps", log_every_n_steps),
        ):
            _check_count(name, value, low=1)
        if gradient_clip_algorithm not in ALGORITHMS:
            raise ConfigurationError(
                f"gradient_clip_algorithm={gradient_clip_algorithm!r}: unknown. Valid: {quoted(ALGORITHMS)}."
            )
        self.runtime = Runtime(
            accelerator=accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            checkpoint_io=checkpoint_io,
            cluster_environment=cluster_environment,
        )
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
        self.loggers: list[Logger] = _as_list("logger", logger, "log_metrics")
        self.callbacks: list[Callback] = _as_list("callbacks", callbacks, "on_fit_start")
        self._add_default_callbacks(enable_checkpointing, enable_progress_bar)

        self.current_epoch = 0
        """The running epoch, from 0; after ``fit``, how many were completed."""
        self.global_step = 0
        """Optimizer steps taken so far."""
        self.should_stop = False
        """Set it to end ``fit`` after the running step."""
        self.callback_metrics: dict[str, torch.Tensor] = {}
        """The newest value of everything that was logged, as scalars."""
        self.prog_bar_metrics: set[str] = set()
        """Which of them were logged for the progress bar."""
        self.train_loader: Any = None
        """The loader of the running ``fit``, as it was prepared."""
        self.metric_log: MetricLog
        """Takes what the module logs in the running stage."""
        self._fit_loop: FitLoop | None = None

    def _add_default_callbacks(self, enable_checkpointing: bool, enable_progress_bar: bool | None) -> None:
        if enable_progress_bar and not ProgressBar.is_available():
            raise ConfigurationError(
                "enable_progress_bar=True: tqdm is not installed. Valid: False, or `pip install torch-hal[progress]`."
            )
        wants_bar = ProgressBar.is_available() if enable_progress_bar is None else enable_progress_bar
        if wants_bar and not any(isinstance(callback, ProgressBar) for callback in self.callbacks):
            self.callbacks.append(ProgressBar())
        if enable_checkpointing and self.checkpoint_callback is None:
            # Last, so that what the others did at an epoch's end is in the checkpoint.
            self.callbacks.append(ModelCheckpoint())

    # -- what a user calls ---------------------------------------------------------------------------------------

    def fit(
        self,
        module: Module,
        train_dataloaders: Any,
        val_dataloaders: Any = None,
        *,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Train.

        Args:
            module: What is trained, in place.
            train_dataloaders: A DataLoader, or any iterable of batches that can be iterated once an epoch.
            val_dataloaders: Likewise for validation, or ``None``.
            ckpt_path: A checkpoint to resume from, or ``"last"`` for the newest committed one where this trainer
                writes its own.

        Raises:
            WrongTypeError: The module is no :class:`core.Module`.
            ConfigurationError: The module lacks a step.
            CheckpointError: The checkpoint cannot be used.
        """
        steps = ["training_step", "configure_optimizers"] + (["validation_step"] if val_dataloaders is not None else [])
        _check_module(module, *steps)
        self.should_stop = False
        self._run(_fit, module, train_dataloaders, val_dataloaders, self._resolve(ckpt_path))

    def validate(
        self, module: Module, dataloaders: Any, *, ckpt_path: str | os.PathLike[str] | None = None
    ) -> dict[str, float]:
        """Run ``validation_step`` on every batch; returns what it logged, over all processes."""
        return self._evaluate("validate", module, dataloaders, ckpt_path)[0]

    def test(
        self, module: Module, dataloaders: Any, *, ckpt_path: str | os.PathLike[str] | None = None
    ) -> dict[str, float]:
        """Run ``test_step`` on every batch; returns what it logged, over all processes."""
        return self._evaluate("test", module, dataloaders, ckpt_path)[0]

    def predict(
        self, module: Module, dataloaders: Any, *, ckpt_path: str | os.PathLike[str] | None = None
    ) -> list[Any]:
        """Run ``predict_step`` on every batch.

        Returns:
            What it returned, tensors on the CPU, one item a batch, of all processes and in every process; in the
            loader's order where it is no stream.
        """
        return self._evaluate("predict", module, dataloaders, ckpt_path)[1]

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint of the running ``fit`` as at its epoch's end; every process calls it.

        Raises:
            ConfigurationError: No ``fit`` is running.
            CheckpointError: It could not be written.
        """
        if self._fit_loop is None:
            raise ConfigurationError("save_checkpoint: no fit is running. Valid: from a callback or the module.")
        save_state(self._fit_loop, path)

    @property
    def plan(self) -> Any:
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
    def checkpoint_callback(self) -> ModelCheckpoint | None:
        """The first callback that writes checkpoints."""
        return next((callback for callback in self.callbacks if isinstance(callback, ModelCheckpoint)), None)

    # -- what the loops call -------------------------------------------------------------------------------------

    def prepare_loader(self, loader: Any, evaluation: bool = False) -> Any:
        """``loader`` with this process's share; an iterable that is no DataLoader is taken as it is in one process.

        Raises:
            WrongTypeError: It cannot be shared out.
        """
        strategy = self.runtime.strategy
        if isinstance(loader, DataLoader):
            return prepare_loader(loader, strategy, evaluation)
        if strategy.data_shards > 1 or not hasattr(loader, "__iter__"):
            raise WrongTypeError(
                f"dataloaders: given {type(loader).__name__}. Valid: a torch DataLoader"
                + (", which alone can be shared out among processes." if strategy.data_shards > 1 else " or an iterable.")
            )
        return loader

    def take_metrics(self, metrics: dict[str, torch.Tensor]) -> None:
        """Publish what an epoch or an evaluation gave."""
        self.callback_metrics.update(metrics)
        self.prog_bar_metrics |= self.metric_log.prog_bar_names() & set(metrics)
        if metrics and self.loggers:
            self.send_to_loggers({name: float(value) for name, value in metrics.items()})

    def send_to_loggers(self, metrics: dict[str, float]) -> None:
        """Hand ``metrics`` to each logger, in process 0."""
        if metrics and self.is_global_zero:
            for logger in self.loggers:
                logger.log_metrics(metrics, self.global_step)

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
        _check_module(module, STEPS[stage])
        result: tuple[dict[str, float], list[Any]] = self._run(_evaluate, stage, module, loader, self._resolve(ckpt_path))
        return result

    def _run(self, stage: Callable[..., Any], *args: Any) -> Any:
        """Run ``stage`` in every process; what it did to trainer and module is done here as well."""
        handed_back: Any = self.runtime.launch(_in_process, self, stage, *args)
        return hand_back(handed_back, self, args)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("metric_log", "_fit_loop")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _fit_loop=None)


def _in_process(runtime: Runtime, trainer: Trainer, stage: Callable[..., Any], *args: Any) -> Any:
    """What each process runs: the stage, and the end of the run whichever way it ends."""
    trainer.runtime = runtime
    module = next(arg for arg in args if isinstance(arg, Module))
    module._trainer = trainer
    try:
        result = stage(trainer, *args)
        handed_over = hand_over(result, trainer, module)
    except BaseException as error:
        for callback in trainer.callbacks:
            callback.on_exception(trainer, module, error)
        runtime.teardown(failed=True)
        raise
    finally:
        module._trainer = None
        trainer._fit_loop = None
    runtime.teardown()
    return handed_over


def _fit(trainer: Trainer, module: Module, train: Any, val: Any, ckpt_path: str | None) -> None:
    trainer._fit_loop = loop = FitLoop(trainer, module, train, val, ckpt_path)
    trainer.train_loader = loop.loader
    loop.run()


def _evaluate(
    trainer: Trainer, stage: str, module: Module, loader: Any, ckpt_path: str | None
) -> tuple[dict[str, float], list[Any]]:
    runtime = trainer.runtime
    if ckpt_path is not None:
        runtime.strategy.load_module_state(module, runtime.strategy.load_checkpoint(ckpt_path)["state_dict"])
    step_module = StepModule(module)
    was_training = module.training
    model = runtime.prepare(step_module)
    evaluation = EvaluationLoop(trainer, module, step_module, model, stage, loader)
    trainer.callback_metrics = {}
    outputs = evaluation.run()
    module.train(was_training)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}, outputs


def _check_module(module: Any, *steps: str) -> None:
    if not isinstance(module, Module):
        raise WrongTypeError(f"module: given {type(module).__name__}. Valid: a core.Module.")
    missing = [step for step in steps if step != "predict_step" and getattr(type(module), step) is getattr(Module, step)]
    if missing:
        raise ConfigurationError(f"module: {type(module).__name__} does not define {quoted(missing)}.")


def _check_count(name: str, value: Any, low: int) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
        raise ConfigurationError(f"{name}={value!r}: not a number of them. Valid: a whole number from {low}.")


def _as_list(name: str, given: Any, method: str) -> list[Any]:
    items = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for item in items:
        if not callable(getattr(item, method, None)) or isinstance(item, type):
            raise WrongTypeError(f"{name}: given {item!r}. Valid: objects with {method}(…).")
    return items
