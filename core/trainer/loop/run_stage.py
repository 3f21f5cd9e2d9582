"""The stages of a Trainer as each process runs them: the stage itself, and the end of the run, also after an error."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...callbacks.checkpoint.paths import run_folder
from ...callbacks.display.model_summary import ModelSummary, start_line
from ...callbacks.tuning import set_as_before
from ...errors import ConfigurationError, CoreError
from ...hints.remedies import add_remedy
from ...precisions.base import LossError
from ...profilers import PassThroughProfiler
from ...runtime import Runtime
from ...runtime.process_control import describe_leaves
from ...strategies.first_failure import Failures
from ...strategies.launchers.cause import cause_of
from ...strategies.launchers.exit_codes import EndedBySignal
from ...strategies.parallel import ProcessGroupStrategy
from ..checkpoint.finished_fit import FinishedFit, Results, check_same
from ..checkpoint.fit_state import find_for_all, load_module, read_for_fit
from ..checks import check_steps
from ..fit_warnings import warn_of_late_validation, warn_of_unused_validation
from ..metrics.run_loggers import begin_loggers, end_loggers, log_start
from ..module.hooks import BatchHooks, Hooks
from ..module.module import Module
from ..run_context import RunContext
from ..settings import Settings
from ..step.compilation import compiled_steps
from ..step.step_module import StepModule
from ..trainer_state import STAGES
from .data_sources import DataSource, Reloading
from .evaluate import LOADER, EvaluationLoop
from .fit import FitLoop
from .signals import HeldBack, Signals

if TYPE_CHECKING:
    from ..trainer import Trainer

logger = logging.getLogger(__name__)
MOST_PARTS = 6
"""The number of a batch's parts that an error describes."""


@contextmanager
def torch_settings(settings: Settings) -> Iterator[None]:
    """A context in which ``deterministic``, ``benchmark`` and ``detect_anomaly`` take effect; every process enters it.

    Afterwards torch has the settings that it had before. ``None`` leaves a setting as it is.
    """
    deterministic = settings.deterministic
    benchmark = False if settings.benchmark is None and deterministic else settings.benchmark
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    # The backends that can try several algorithms and keep the fastest.
    flags = [(backend, backend.benchmark) for backend in vars(torch.backends).values() if hasattr(backend, "benchmark")]
    was_detecting, checked_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    try:
        if deterministic is not None:
            torch.use_deterministic_algorithms(bool(deterministic), warn_only=deterministic == "warn")
        if benchmark is not None:
            for backend, _ in flags:
                backend.benchmark = benchmark
        if settings.detect_anomaly:
            torch.set_anomaly_enabled(True)
        yield
    finally:
        if deterministic is not None:
            torch.use_deterministic_algorithms(was_deterministic, warn_only=warned_only)
        if benchmark is not None:
            for backend, before in flags:
                backend.benchmark = before
        if settings.detect_anomaly:
            torch.set_anomaly_enabled(was_detecting, checked_nan)


def run_stage(
    runtime: Runtime,
    trainer: Trainer,
    stage: Callable[..., Any],
    module: Module,
    ckpt_path: str | os.PathLike[str] | None,
    source: DataSource,
) -> Any:
    """Run in each process: the stage, and the end of the run, also after an error."""
    with torch_settings(trainer.settings), HeldBack(trainer.signals if source.stage == "fit" else {}):
        try:
            return _run_stage(runtime, trainer, stage, module, ckpt_path, source)
        except BaseException:
            runtime.teardown(failed=True)  # if what ends the run has failed itself
            raise


def _run_stage(
    runtime: Runtime,
    trainer: Trainer,
    stage: Callable[..., Any],
    module: Module,
    ckpt_path: str | os.PathLike[str] | None,
    source: DataSource,
) -> Any:
    trainer.runtime = runtime
    runtime.strategy.follow(trainer)
    outer, module._trainer = module._trainer, trainer
    run = trainer.run
    run.module = weakref.ref(module)
    context = run.context = RunContext(
        settings=trainer.settings,
        progress=run.progress,
        metric_log=run.metric_log,
        hooks=Hooks(trainer, module, trainer.callbacks),
        runtime=runtime,
        module=module,
        stage="train" if source.stage == "fit" else source.stage,
        datamodule=source.datamodule,
        profiler=None if isinstance(trainer.profiler, PassThroughProfiler) else trainer.profiler,
        batch_counts=run.batch_counts,
        batch_hooks=BatchHooks(runtime.strategy, source.datamodule, module),
    )
    context.hooks.profiler = context.profiler
    datamodule = run.datamodule = source.datamodule
    if datamodule is not None:
        datamodule.trainer = trainer
    callbacks = [(callback, callback._logs_to) for callback in trainer.callbacks]
    for callback, _ in callbacks:
        callback._logs_to = module
    run.given_ckpt_path = None if ckpt_path in (None, "last", "best") else os.fspath(ckpt_path)
    try:
        found = run.ckpt_path = find_for_all(runtime.strategy, ckpt_path, trainer, is_fit=source.stage == "fit")
        run.metric_log.begin(module, run.progress, source.stage == "fit")
        begin_loggers(trainer.loggers, runtime.strategy, found, makes_files=source.stage != "predict")
        if source.stage == "fit":
            run.folder = run_folder(trainer)
        if context.profiler is not None:
            context.profiler.setup(source.stage, runtime.strategy.global_rank, trainer.log_dir)
        source.prepare(runtime.strategy)
        names = set(nn.Module.state_dict(module)) if runtime.plan.runs_function else None
        source.setup("datamodule")
        context.hooks.call_callbacks("setup", source.stage)
        source.setup("module")
        if names is not None:
            check_same(module, names)
        module.configure_model()
        runtime.strategy.setup(trainer)
        with compiled_steps(module, trainer.settings, runtime.strategy):
            outcome = stage(trainer, context, found, source)
        finished = None if run.fit_loop is None else FinishedFit.of(run.fit_loop.state)
        run.finished = finished or run.finished
        source.teardown("datamodule")
        context.hooks.call_callbacks("teardown", source.stage)
        source.teardown("module")
        if runtime.plan.runs_function:  # this process ends with the run
            outcome = Results.of(context, outcome, finished)
    except BaseException as error:
        run.interrupted = True
        status = "interrupted" if isinstance(error, (KeyboardInterrupt, EndedBySignal)) else "failed"
        if runtime.strategy.world_size > 1 and Failures.current is not None:
            Failures.current.announce(error)  # a hook may wait for the other processes, which are elsewhere
        try:
            context.hooks.call_callbacks("on_exception", error)
            if datamodule is not None:
                datamodule.on_exception(error)
        except Exception as other:
            other.add_note(f"It was raised in on_exception, which was called for {cause_of(error)}")
            raise
        finally:
            end_loggers(trainer.loggers, status, runtime.plan.runs_function)
            runtime.teardown(failed=not isinstance(error, EndedBySignal))
        _explain(error, module)
        raise
    finally:
        module._trainer = outer
        if context.profiler is not None:
            context.profiler.describe()
            context.profiler.teardown()
        for callback, before in callbacks:
            callback._logs_to = before
        if datamodule is not None:
            datamodule.trainer = None
        run.end()
    try:
        end_loggers(trainer.loggers, "success", runtime.plan.runs_function)
    finally:
        runtime.teardown()
    return outcome


def fit(trainer: Trainer, context: RunContext, ckpt_path: str | None, source: DataSource) -> None:
    """Train, in each process; see :meth:`core.Trainer.fit`."""
    trainer.run.finished = None
    context.progress.reset()
    context.metric_log.reset()
    checkpoint = {} if ckpt_path is None else read_for_fit(context, ckpt_path)
    set_as_before(trainer.callbacks, context.module, context.datamodule, checkpoint.get("callbacks", {}))
    train_loader = None if context.settings.limit_train_batches == 0 else source.loader("train")
    has_validation = context.settings.limit_val_batches != 0 and context.module.validation_step is not None
    val_loader = source.loader("val") if has_validation else None
    if val_loader is not None:
        check_steps(context.module, "validation_step")
    elif has_validation and not trainer.is_trial:
        warn_of_unused_validation(context.module)
    trainer.run.fit_loop = loop = FitLoop(context, train_loader, val_loader, Reloading(context, source))
    if val_loader is not None and train_loader is not None and not trainer.is_trial:
        warn_of_late_validation(context.settings, loop.batches.num_batches)
    loop.configure(ckpt_path, checkpoint)
    del checkpoint  # its tensors
    say_what_runs(context)
    log_start(trainer.loggers, context.module, context.datamodule)
    strategy = context.runtime.strategy
    board = strategy.board if isinstance(strategy, ProcessGroupStrategy) else None
    signals = Signals(
        trainer.signals,
        board,
        strategy.global_rank,
        strategy.world_size,
        partial(_save_for_signal, trainer),
        strategy.cluster_environment.requeue_command(),
    )
    try:
        with signals:
            loop.signals = signals
            loop.run()
    finally:
        loop.controls.restore()
        trainer.run.received_sigterm = signals.has_received("SIGTERM")


def _explain(error: BaseException, module: Module) -> None:
    """Raise ``error`` as what the user's module did, if it names what the user did not call."""
    if isinstance(error, LossError) and module.automatic_optimization:
        raise ConfigurationError(error.of_step) from error.__cause__
    if isinstance(error, ValueError) and "default process group twice" in str(error):
        raise ConfigurationError(
            "init_process_group: the strategy has made the default process group when the run began. Remove the "
            "call, or make it before the Trainer is created: the strategy uses a group that is there."
        ) from error
    if not isinstance(error, CoreError):
        _add_notes(error)


def _add_notes(error: BaseException) -> None:
    """Add to an error what the step was called with, if it is of one, and what to do about it if that is known.

    The traceback has the batch: a loop that noted each one would take time, and a ``try`` around the step would keep
    torch.compile from compiling a step with a graph break.
    """
    for frame, _ in walk_tb(error.__traceback__):
        if frame.f_code is StepModule.forward.__code__:
            called, batch, batch_idx = (frame.f_locals[name] for name in ("self", "batch", "batch_idx"))
            parts = [f"{place}: {fact}" for place, fact in describe_leaves(batch, "batch")]
            more = ["…"] * (len(parts) > MOST_PARTS)
            error.add_note(f"{called.name} got batch_idx={batch_idx}, {', '.join([*parts[:MOST_PARTS], *more])}.")
            add_remedy(error, f"{called.name}:\n{error}")
            return
    add_remedy(error)


def _save_for_signal(trainer: Trainer) -> str:
    """Commit ``signal.ckpt`` next to the run's other checkpoints, if there are any; every process calls it."""
    folders = (getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks)
    folder = next((os.fspath(folder) for folder in folders if folder), None)
    if folder is None or trainer.fast_dev_run:
        return ""
    path = os.path.join(folder, "signal.ckpt")
    trainer.save_checkpoint(path)
    trainer.strategy.checkpoint_io.wait()  # what comes next may be the end of this process
    return path


def evaluate(
    trainer: Trainer, context: RunContext, ckpt_path: str | None, source: DataSource, keeps_outputs: bool = False
) -> tuple[list[dict[str, float]], list[list[Any]]]:
    """Run a stage of evaluation, in each process; returns the logged values and the outputs, by loader."""
    step_module = StepModule.of(context.module)
    model = context.runtime.prepare(step_module)
    if ckpt_path is not None:
        load_module(context, ckpt_path)
    context.metric_log.reset()
    stage = STAGES[source.stage]
    if context.settings.limit_batches(stage.kind) == 0:
        return [], []
    loop = trainer.run.evaluation = EvaluationLoop(context, step_module, model, stage, source.loader(stage.kind))
    loop.configure()
    outputs = loop.run(keeps_outputs=keeps_outputs)
    values = {name: float(value) for name, value in context.metric_log.of_epochs.items()}
    # A process may have no batch of some loader.
    logged = context.runtime.strategy.all_gather_object(loop.metrics.loaders) if len(outputs) > 1 else []
    return [_of_loader(values, number, logged) for number in range(len(outputs))], outputs


def _of_loader(values: dict[str, float], number: int, logged: Iterable[Mapping[str, set[int]]]) -> dict[str, float]:
    """The ``values`` that do not belong to other loaders only."""

    def is_own(name: str) -> bool:
        if match := LOADER.search(name):
            return int(match[1]) == number
        of: set[int] = set()
        for loaders in logged:
            of |= loaders.get(name) or loaders.get(name.removesuffix("_epoch"), set())
        return not of or number in of

    return {name: value for name, value in values.items() if is_own(name)}


def say_what_runs(context: RunContext) -> None:
    """Say it in process 0 at INFO, unless a ModelSummary says it above its table."""
    if not context.runtime.strategy.is_global_zero:
        return
    if not any(isinstance(callback, ModelSummary) and callback.max_depth for callback in context.hooks.callbacks):
        logger.info("%s", start_line(context.runtime.plan))
