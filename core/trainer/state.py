"""What a checkpoint of a fit holds, and how it is loaded.

On as many processes as wrote it, the resumed run is bit for bit the uninterrupted one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from torch import nn

from core.callbacks.base import Callback
from core.checkpoints import latest
from core.errors import CheckpointError, quoted
from core.runtime.process_state import ABSENT, PATIENCE, ProcessStates, load_open_state, open_state
from core.runtime.state import load_errors, run_facts
from core.strategies.base import Strategy
from core.strategies.meeting import Meeting
from core.trainer.metrics import StageMetrics
from core.trainer.module import Module
from core.trainer.optimization import Optimization
from core.trainer.run import Run

logger = logging.getLogger(__name__)

__all__ = ["FitState", "find_checkpoint", "find_for_all", "load_module"]

PARTS = ("progress", "state_dict", "optimizer", "lr_schedulers", "precision", "callbacks", "metrics", "processes")
"""The parts of a Trainer's checkpoint that a resumed fit needs."""


@attrs.frozen(kw_only=True)
class FitState:
    """Everything of a fit that goes into a checkpoint."""

    run: Run
    optimization: Optimization
    loaders: Sequence[Any]
    """The loaders of training and, if there is one, of validation, as they were prepared."""

    model: nn.Module
    """The module that the loop calls, as the strategy set it up."""
    metrics: StageMetrics
    """What was logged in the running epoch of training."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint; every process calls it, or process 0 where each has the whole state.

        Raises:
            CheckpointError: It could not be written, or a process that is needed did not call this.
        """
        run, strategy, progress = self.run, self.run.runtime.strategy, self.run.progress
        meeting = Meeting(strategy, "save_checkpoint", patience=PATIENCE)
        if meeting.is_late:
            logger.warning(ABSENT, "save_checkpoint", f"{strategy.global_rank} (too late)")
            return
        own: dict[str, Any] = {"metrics": self.metrics.state_dict() if progress.is_in_epoch else []}
        if progress.is_accumulating:
            own["open"] = open_state([(run.module, self.model)], strategy)
        processes = ProcessStates.gather(meeting, strategy, self.loaders, progress.is_accumulating, **own)
        checkpoint: dict[str, Any] = {
            "core": run_facts(run.runtime.plan),
            "progress": progress.state_dict(),
            "state_dict": strategy.module_state(run.module),
            "optimizer": strategy.optimizer_state(self.optimization.optimizer),
            "lr_schedulers": [schedule.scheduler.state_dict() for schedule in self.optimization.schedules],
            "precision": strategy.precision.state_dict(),
            "callbacks": {key: callback.state_dict() for key, callback in _keyed(run.hooks.callbacks)},
            "metrics": run.metric_log.state_dict(),
            "processes": processes.by_rank,
        }
        if run.datamodule is not None:
            checkpoint["datamodule"] = run.datamodule.state_dict()
        for hook in run.hooks.bind_module("on_save_checkpoint"):
            hook(checkpoint)
        meeting.save(lambda: checkpoint, path)

    def load(self, path: str) -> ProcessStates:
        """Load a checkpoint; every process calls it.

        Returns:
            What :meth:`restore_process` takes, immediately before the next batch.

        Raises:
            CheckpointError: The checkpoint is absent, uncommitted, damaged, not a Trainer's, from another module,
                optimizer or scheduler; or from another number of processes, if it was saved within an accumulation or
                the strategy can load only its own number.
        """
        run, strategy = self.run, self.run.runtime.strategy
        checkpoint = _read(strategy, path, *PARTS)
        states = ProcessStates.read(checkpoint["processes"], strategy, path, reshard=True)
        if len(states.by_rank) != strategy.world_size and strategy.is_global_zero:
            logger.warning(
                "ckpt_path=%r: written by %d process(es), but this run has %d, which divide the batches differently. "
                "Training continues, but not bit for bit as the first run would have",
                path,
                len(states.by_rank),
                strategy.world_size,
            )
        _load_module(strategy, run.module, checkpoint, path)
        with load_errors("optimizer", path):
            strategy.load_optimizer_state(self.optimization.optimizer, checkpoint["optimizer"])
        with load_errors("lr_schedulers", path):
            for schedule, schedule_state in zip(self.optimization.schedules, checkpoint["lr_schedulers"], strict=True):
                schedule.scheduler.load_state_dict(schedule_state)
        with load_errors("precision", path):
            strategy.precision.load_state_dict(checkpoint["precision"])
        for key, callback in _keyed(run.hooks.callbacks):
            if key in checkpoint["callbacks"]:
                with load_errors(f"callbacks {key}", path):
                    callback.load_state_dict(checkpoint["callbacks"][key])
        if run.datamodule is not None and "datamodule" in checkpoint:
            with load_errors("datamodule", path):
                run.datamodule.load_state_dict(checkpoint["datamodule"])
        run.progress.load_state_dict(checkpoint["progress"])
        run.metric_log.load_state_dict(checkpoint["metrics"])
        for hook in run.hooks.bind_module("on_load_checkpoint"):
            hook(checkpoint)
        # A run may leave out the validation that the first one had, or add one.
        states.restore_loaders(self.loaders, path)
        return states

    def restore_process(self, states: ProcessStates) -> None:
        """Restore what is this process's own, at the last moment before random numbers are drawn again."""
        own = states.own
        self.metrics.load_state_dict([] if own is None else own["metrics"])
        if states.is_accumulating:
            modules = [(self.run.module, self.model)]
            load_open_state(modules, None if own is None else own["open"], self.run.runtime.strategy)
        states.restore_generators()


def load_module(strategy: Strategy, module: Module, path: str) -> None:
    """Load the parameters of ``module`` from a Trainer's checkpoint; every process calls it.

    Raises:
        CheckpointError: The checkpoint is absent, uncommitted, damaged, or from another module.
    """
    _load_module(strategy, module, _read(strategy, path, "state_dict"), path)


def find_checkpoint(ckpt_path: str | os.PathLike[str], directory: str) -> str:
    """The path that ``ckpt_path`` means in this process; ``"last"`` is the newest committed one in ``directory``.

    Raises:
        CheckpointError: ``"last"`` was given and there is none.
    """
    if ckpt_path != "last":
        return os.fspath(ckpt_path)
    found = latest(directory)
    if found is None:
        raise CheckpointError(
            f"ckpt_path='last': there is no committed checkpoint in {directory!r}. Give a path, or None to start from "
            "the beginning."
        )
    return os.fspath(found)


def find_for_all(strategy: Strategy, ckpt_path: str | os.PathLike[str] | None, directory: str) -> str | None:
    """The path that ``ckpt_path`` means in process 0; every process calls it.

    Raises:
        CheckpointError: As in :func:`find_checkpoint`, in every process.
    """
    if ckpt_path != "last":
        return None if ckpt_path is None else os.fspath(ckpt_path)
    found, error = "", ""
    if strategy.is_global_zero:
        try:
            found = find_checkpoint(ckpt_path, directory)
        except CheckpointError as raised:
            error = str(raised)
    found, error = strategy.broadcast((found, error))
    if error:
        raise CheckpointError(error)
    return found


def _keyed(callbacks: Sequence[Callback]) -> Iterator[tuple[str, Callback]]:
    """The callbacks with their names in checkpoints."""
    seen: dict[str, int] = {}
    for callback in callbacks:
        name = type(callback).__qualname__
        seen[name] = seen.get(name, 0) + 1
        yield f"{name}#{seen[name]}", callback


def _read(strategy: Strategy, path: str, *parts: str) -> dict[str, Any]:
    checkpoint = strategy.load_checkpoint(path)
    missing = [part for part in parts if part not in checkpoint]
    if missing:
        raise CheckpointError(
            f"ckpt_path={path!r}: the checkpoint has no {quoted(missing)}. Use one that a Trainer has written."
        )
    return checkpoint


def _load_module(strategy: Strategy, module: Module, checkpoint: dict[str, Any], path: str) -> None:
    with load_errors("state_dict", path):
        strategy.load_module_state(module, checkpoint["state_dict"])
