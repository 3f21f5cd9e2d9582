"""Metrics and checkpoints for Ray Train, and resuming from them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray.train

from torch_hal import Runtime
from torch_hal.callbacks import Checkpoint
from torch_hal.hints.argument_checks import check_count

__all__ = ["RayReport", "report", "resumed"]

NAME = "checkpoint"
"""The name of the checkpoint inside of Ray's folder."""


class RayReport(Checkpoint):
    """Reports the metrics of a fit to Ray Train, with a checkpoint, from which Ray restarts it.

    Use it in the function of Ray's ``TorchTrainer``, with :func:`resumed`.

    Args:
        every_n_epochs: Report after every n-th epoch, validation included; 0 for not at all.
        every_n_train_steps: Report after every n-th optimizer step; 0 for not at all.
        save: Whether to report a checkpoint with the metrics.

    Raises:
        ConfigurationError: A number is negative.
    """

    def __init__(self, every_n_epochs: int = 1, every_n_train_steps: int = 0, save: bool = True) -> None:
        check_count("every_n_epochs", every_n_epochs, 0)
        check_count("every_n_train_steps", every_n_train_steps, 0)
        self.every_n_epochs = every_n_epochs
        self.every_n_train_steps = every_n_train_steps
        self.save = save
        self._step = 0
        if not every_n_train_steps:
            self.idle_hooks = frozenset({"on_train_batch_end"})

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The steps before this one are reported already."""
        del pl_module
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report if it is due; not again while gradients accumulate."""
        del pl_module, outputs, batch, batch_idx
        step = trainer.global_step
        if step != self._step and step % self.every_n_train_steps == 0:
            self._report(trainer)
        self._step = step

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report if it is due."""
        del pl_module
        if self.every_n_epochs and (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            self._report(trainer)

    def _report(self, trainer: Any) -> None:
        trainer.metric_log.exchange()
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        metrics |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
        with _folder(trainer.strategy) as (path, is_mine):
            if self.save:
                trainer.save_checkpoint(os.path.join(path, NAME))
            _send(metrics, path if self.save and is_mine else None)


def report(runtime: Runtime, metrics: Mapping[str, Any], *, save: bool = True) -> None:
    """Report metrics of a loop of your own to Ray Train, with the state of what was prepared; every process calls it.

    Args:
        runtime: The run.
        metrics: Numbers by name; those of process 0 count.
        save: Whether to report a checkpoint (:meth:`core.Runtime.save_state`) with the metrics.
    """
    with _folder(runtime.strategy) as (path, is_mine):
        if save:
            runtime.save_state(os.path.join(path, NAME))
        _send(dict(metrics), path if save and is_mine else None)


@contextmanager
def resumed() -> Iterator[str | None]:
    """A context with the path of the checkpoint that Ray Train last kept of this run; ``None`` at the first start.

    ::

        with resumed() as path:
            trainer.fit(module, loader, ckpt_path=path)  # or: runtime.load_state(path)
    """
    found = ray.train.get_checkpoint()
    if found is None:
        yield None
        return
    with found.as_directory() as folder:
        yield os.path.join(folder, NAME)


@contextmanager
def _folder(strategy: Any) -> Iterator[tuple[str, bool]]:
    """A temporary folder of the same path in all processes, and whether this process reports it."""
    own = tempfile.mkdtemp(prefix="torch-hal-ray-") if strategy.is_global_zero else None
    path: str = strategy.broadcast(own)
    try:
        yield path, strategy.is_global_zero
    finally:
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)


def _send(metrics: dict[str, Any], folder: str | None) -> None:
    """Every process calls it: Ray waits for all of them."""
    ray.train.report(metrics, checkpoint=None if folder is None else ray.train.Checkpoint.from_directory(folder))
