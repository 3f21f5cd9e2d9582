"""The hooks of a Module and of a Callback: the places in the loops where they may act.

A Callback has the hooks of a Module, with the trainer and the module as their first two arguments. A hook that is not
overridden is never called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

__all__ = ["Callback", "Hooks", "ModuleHooks"]


class ModuleHooks:
    """The hooks of a Module; by default they do nothing."""

    def on_fit_start(self) -> None:
        """Called first in ``fit``, when everything is prepared; the module is in training mode."""

    def on_fit_end(self) -> None:
        """Called last in ``fit``."""

    def on_train_start(self) -> None:
        """Called before the first epoch of ``fit``, after a checkpoint was loaded."""

    def on_train_end(self) -> None:
        """Called after the last epoch of ``fit``."""

    def on_train_epoch_start(self) -> None:
        """Called before the first batch of an epoch."""

    def on_train_epoch_end(self) -> None:
        """Called after an epoch's last batch and its validation, before its checkpoint.

        Values logged here belong to the epoch.
        """

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Called before a training step. Return -1, in every process, to skip the rest of the epoch's batches."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after a training step.

        Args:
            outputs: What the step returned, detached: the loss, the mapping with the loss, or ``None``. With a strategy
                that compiles the whole step, it is the loss.
            batch: The batch.
            batch_idx: Its number in the epoch, from 0.
        """

    def on_validation_start(self) -> None:
        """Called first, in evaluation mode."""

    def on_validation_epoch_start(self) -> None:
        """Called before the first batch."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Called before ``validation_step``."""

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after ``validation_step`` with what it returned."""

    def on_validation_epoch_end(self) -> None:
        """Called after the last batch; values logged here belong to the epoch."""

    def on_validation_end(self) -> None:
        """Called last, still in evaluation mode; nothing can be logged any more."""

    def on_test_start(self) -> None:
        """Called first, in evaluation mode."""

    def on_test_epoch_start(self) -> None:
        """Called before the first batch."""

    def on_test_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Called before ``test_step``."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after ``test_step`` with what it returned."""

    def on_test_epoch_end(self) -> None:
        """Called after the last batch; values logged here belong to the epoch."""

    def on_test_end(self) -> None:
        """Called last, still in evaluation mode; nothing can be logged any more."""

    def on_predict_start(self) -> None:
        """Called first, in evaluation mode."""

    def on_predict_epoch_start(self) -> None:
        """Called before the first batch."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Called before ``predict_step``."""

    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called after ``predict_step`` with what it returned."""

    def on_predict_epoch_end(self) -> None:
        """Called after the last batch; values logged here belong to the epoch."""

    def on_predict_end(self) -> None:
        """Called last, still in evaluation mode; nothing can be logged any more."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called in every process before ``checkpoint`` is written; may add to it."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called in every process after ``checkpoint`` was read and loaded."""


class Callback:
    """Acts at the hooks of a run, next to the Module. Every hook gets the trainer and the module first.

    By default the hooks do nothing.
    """

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        """Called in every process before anything is prepared, after the DataModule's ``setup``, before the module's.

        Args:
            trainer: The trainer.
            module: The module.
            stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        """

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """Called at the end of the run, unless it failed."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_fit_start`."""

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_fit_end`."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_train_epoch_start`."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_train_epoch_end`. The epoch's metrics are in ``trainer.callback_metrics``."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> int | None:
        """See :meth:`ModuleHooks.on_train_batch_start`."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """See :meth:`ModuleHooks.on_train_batch_end`."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_train_start`."""

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_train_end`."""

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_validation_start`."""

    def on_validation_epoch_start(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_validation_epoch_start`."""

    def on_validation_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """See :meth:`ModuleHooks.on_validation_batch_start`."""

    def on_validation_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """See :meth:`ModuleHooks.on_validation_batch_end`."""

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_validation_epoch_end`. The epoch's metrics are in ``trainer.callback_metrics``."""

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_validation_end`."""

    def on_test_start(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_test_start`."""

    def on_test_epoch_start(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_test_epoch_start`."""

    def on_test_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """See :meth:`ModuleHooks.on_test_batch_start`."""

    def on_test_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """See :meth:`ModuleHooks.on_test_batch_end`."""

    def on_test_epoch_end(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_test_epoch_end`. The epoch's metrics are in ``trainer.callback_metrics``."""

    def on_test_end(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_test_end`."""

    def on_predict_start(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_predict_start`."""

    def on_predict_epoch_start(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_predict_epoch_start`."""

    def on_predict_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """See :meth:`ModuleHooks.on_predict_batch_start`."""

    def on_predict_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """See :meth:`ModuleHooks.on_predict_batch_end`."""

    def on_predict_epoch_end(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_predict_epoch_end`."""

    def on_predict_end(self, trainer: Any, module: Any) -> None:
        """See :meth:`ModuleHooks.on_predict_end`."""

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """Called when ``error`` ends the run, before it is raised to the caller."""

    def state_dict(self) -> dict[str, Any]:
        """The callback's state for a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that :meth:`state_dict` returned."""


BoundHooks = tuple[Callable[..., Any], ...]


class Hooks:
    """The hooks of one run, with their first arguments bound.

    Args:
        trainer: Passed to the callbacks; it is not used otherwise.
        module: The Module whose hooks are called.
        callbacks: Called in this order, after the module. The list may change during the run.
    """

    def __init__(self, trainer: Any, module: ModuleHooks, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks
        self._trainer, self._module = trainer, module

    def bind(self, name: str) -> BoundHooks:
        """The overridden hooks called ``name``, the module's first; call each with the remaining arguments."""
        return self.bind_module(name) + self.bind_callbacks(name)

    def bind_module(self, name: str) -> BoundHooks:
        """The module's hook called ``name``, if the module overrides it."""
        module = self._module
        return () if getattr(type(module), name) is getattr(ModuleHooks, name) else (getattr(module, name),)

    def bind_callbacks(self, name: str) -> BoundHooks:
        """The hooks called ``name`` of the callbacks that override it."""
        default = getattr(Callback, name)
        overriding = (callback for callback in self.callbacks if getattr(type(callback), name) is not default)
        return tuple(partial(getattr(callback, name), self._trainer, self._module) for callback in overriding)

    def call(self, name: str, *args: Any) -> None:
        """Call the overridden hooks called ``name``, the module's first."""
        for hook in self.bind(name):
            hook(*args)
