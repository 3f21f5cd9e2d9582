"""The hooks of a Module, and how a run calls hooks. A hook that is not overridden is never called."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from ...callbacks.base import Callback, Checkpoint
from ...errors import ConfigurationError, quoted
from ...profilers.base import Profiler
from ...strategies.base import Strategy
from .datamodule import DataHooks

if TYPE_CHECKING:
    from ..trainer import Trainer

logger = logging.getLogger(__name__)

STEP_OUTPUT = Tensor | Mapping[str, Any] | None
"""What ``training_step`` returns: the type of ``outputs`` in the hooks after a step, for annotations of scripts."""


class ModuleHooks:
    """The hooks of a Module; by default they do nothing, but for those that put it in evaluation mode."""

    def on_fit_start(self) -> None:
        """Called first in ``fit``, when everything is prepared."""

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

    def training_epoch_end(self, outputs: list[Any]) -> None:
        """Called before :meth:`on_train_epoch_end`. What it logs belongs to the epoch.

        Args:
            outputs: What each step of this process returned in the epoch, detached, as in :meth:`on_train_batch_end`;
                without ``None``. They are kept, on their device, only if this hook is defined. An epoch that is resumed
                has the steps since then.
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

    def on_before_zero_grad(self, optimizer: Optimizer) -> None:
        """Called in a training step before gradients are cleared, unless the optimization is manual."""

    def on_before_backward(self, loss: Tensor) -> None:
        """Called before each backward pass with its loss, which is not scaled yet."""

    def on_after_backward(self) -> None:
        """Called after each backward pass; gradients are reduced, unless they are accumulated, and may be scaled."""

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Called before each step of an optimizer; gradients are unscaled and not clipped yet."""

    def on_validation_model_eval(self: Any) -> None:
        """Puts the module in evaluation mode, before :meth:`on_validation_start`; override it for parts that train."""
        self.eval()

    def on_validation_start(self) -> None:
        """Called first, in evaluation mode."""

    def on_validation_epoch_start(self) -> None:
        """Called before the first batch."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called before ``validation_step``."""

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called after ``validation_step`` with what it returned."""

    def on_validation_epoch_end(self) -> None:
        """Called after the last batch; values logged here belong to the epoch."""

    def validation_epoch_end(self, outputs: list[Any]) -> None:
        """Called before :meth:`on_validation_epoch_end`. What it logs belongs to the epoch.

        Args:
            outputs: What each step of this process returned, without ``None``; with several loaders a list for each.
                They are kept, on their device, only if this hook is defined.
        """

    def on_validation_end(self) -> None:
        """Called last, still in evaluation mode; nothing can be logged any more."""

    def on_validation_model_train(self) -> None:
        """Called after :meth:`on_validation_end`, when each submodule is back in the mode that it had before."""

    def on_test_model_eval(self: Any) -> None:
        """Like :meth:`on_validation_model_eval`."""
        self.eval()

    def on_test_start(self) -> None:
        """Called first, in evaluation mode."""

    def on_test_epoch_start(self) -> None:
        """Called before the first batch."""

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called before ``test_step``."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called after ``test_step`` with what it returned."""

    def on_test_epoch_end(self) -> None:
        """Called after the last batch; values logged here belong to the epoch."""

    def test_epoch_end(self, outputs: list[Any]) -> None:
        """Like :meth:`validation_epoch_end`, before :meth:`on_test_epoch_end`."""

    def on_test_end(self) -> None:
        """Called last, still in evaluation mode; nothing can be logged any more."""

    def on_test_model_train(self) -> None:
        """Like :meth:`on_validation_model_train`."""

    def on_predict_model_eval(self: Any) -> None:
        """Like :meth:`on_validation_model_eval`."""
        self.eval()

    def on_predict_start(self) -> None:
        """Called first, in evaluation mode."""

    def on_predict_epoch_start(self) -> None:
        """Called before the first batch."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called before ``predict_step``."""

    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called after ``predict_step`` with what it returned."""

    def on_predict_epoch_end(self) -> None:
        """Called after the last batch; values logged here belong to the epoch."""

    def on_predict_end(self) -> None:
        """Called last, still in evaluation mode; nothing can be logged any more."""

    def on_predict_model_train(self) -> None:
        """Like :meth:`on_validation_model_train`."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called in every process before ``checkpoint`` is written; may add to it."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Called in every process before the parameters in ``checkpoint`` are loaded; may change it.

        In ``fit``, ``validate``, ``test`` and ``predict`` with ``ckpt_path``, and in ``load_from_checkpoint``.
        """


BoundHooks = tuple[Callable[..., Any], ...]


class Hooks:
    """The hooks of one run, with their first arguments bound.

    Args:
        trainer: Passed to the callbacks; it is not used otherwise.
        module: The Module whose hooks are called.
        callbacks: Called in this order. The list may change during the run.
    """

    def __init__(self, trainer: Trainer, module: ModuleHooks, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks
        self._trainer, self._module = trainer, module
        self.profiler: Profiler | None = None
        """Measures each hook; ``None`` if nothing is measured."""

    def bind(self, name: str) -> BoundHooks:
        """The overridden hooks called ``name``, in their order; call each with the remaining arguments.

        As in Lightning, the module's come after the callbacks'. Checkpoints are written last: they hold what the
        module's hook has done, which a resumed run does not call again.
        """
        callbacks = self.bind_callbacks(name, checkpoints=False)
        return callbacks + self.bind_module(name) + self.bind_callbacks(name, checkpoints=True)

    def bind_module(self, name: str) -> BoundHooks:
        """The module's hook called ``name``, if the module overrides it."""
        hook = overridden(self._module, ModuleHooks, name) if hasattr(ModuleHooks, name) else None
        return () if hook is None else (self._timed(name, self._module, hook),)

    def bind_callbacks(self, name: str, *, checkpoints: bool | None = None) -> BoundHooks:
        """The hooks called ``name`` of the callbacks that override it.

        Args:
            name: The hook.
            checkpoints: Whether only of those that write checkpoints, or only of the others; ``None`` for all.
        """
        return tuple(
            self._timed(name, callback, partial(hook, self._trainer, self._module))
            for callback in self.callbacks
            if name not in callback.idle_hooks
            and checkpoints in (None, isinstance(callback, Checkpoint))
            and (hook := overridden(callback, Callback, name)) is not None
        )

    def _timed(self, name: str, owner: Any, hook: Callable[..., Any]) -> Callable[..., Any]:
        return hook if self.profiler is None else self.profiler.wrap(f"[{type(owner).__name__}]{name}", hook)

    def call(self, name: str, *args: Any) -> None:
        """Call the overridden hooks called ``name``, in the order of :meth:`bind`."""
        for hook in self.bind(name):
            hook(*args)

    def bind_of_loader(self, name: str, dataloader_idx: int) -> BoundHooks:
        """Like :meth:`bind`; those that have a parameter ``dataloader_idx`` are given it."""
        return tuple(
            partial(hook, dataloader_idx=dataloader_idx)
            if "dataloader_idx" in inspect.signature(hook).parameters
            else hook
            for hook in self.bind(name)
        )

    def call_callbacks(self, name: str, *args: Any) -> None:
        """Call the overridden hooks called ``name`` of the callbacks."""
        for hook in self.bind_callbacks(name):
            hook(*args)


def overridden(owner: Any, base: type[Any], name: str) -> Callable[..., Any] | None:
    """The method ``name`` of ``owner`` if it overrides the one of ``base``; otherwise ``None``.

    The user may define it in the class or assign it to the object. ``None`` in its place removes it, for example
    ``model.validation_step = None``.
    """
    method: Callable[..., Any] | None = getattr(owner, name, None)
    if method is None or getattr(method, "__func__", method) is getattr(base, name):
        return None
    return method


BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
"""In the order in which they are called."""


def _overrides(owner: DataHooks | None) -> dict[str, Callable[..., Any]]:
    return {name: hook for name in BATCH_HOOKS if (hook := overridden(owner, DataHooks, name)) is not None}


def check_batch_hooks(strategy: Strategy, *owners: DataHooks | None) -> None:
    """Check that the strategy leaves batches to the hooks that ``owners`` override.

    Raises:
        ConfigurationError: It moves batches itself, and a hook changes them. One that only moves them is not called,
            which a warning says.
    """
    if not strategy.moves_batches:
        return
    for owner in owners:
        overrides = _overrides(owner)
        if overrides.pop(BATCH_HOOKS[1], None) is not None:
            logger.warning(
                "%s: %s is not called: strategy=%r moves batches to the device itself",
                type(owner).__name__,
                BATCH_HOOKS[1],
                strategy.name,
            )
        if names := list(overrides):
            raise ConfigurationError(
                f"{type(owner).__name__}: overrides {quoted(names)}, but strategy={strategy.name!r} moves batches to "
                "the device itself. Change the batch in the DataLoader's collate_fn, or in the step."
            )


class BatchHooks:
    """The overridden hooks of one run. What is not overridden costs nothing."""

    def __init__(self, strategy: Strategy, datamodule: DataHooks | None, module: DataHooks) -> None:
        self._strategy, self._module = strategy, module
        self._overridden = {} if strategy.moves_batches else {**_overrides(module), **_overrides(datamodule)}
        self.moves = bool(self._overridden.keys() & {*BATCH_HOOKS[:2]})
        """Whether batches are moved here, so that loaders must leave them where they are."""

    def move(self, batch: Any, dataloader_idx: int) -> Any:
        """``batch`` on this process's device."""
        move: Callable[..., Any] = self._overridden.get(BATCH_HOOKS[1], self._module.transfer_batch_to_device)
        return move(batch, self._strategy.root_device, dataloader_idx)

    def applied(self, batches: Iterator[Any], dataloader_idx: int = 0) -> Iterator[Any]:
        """``batches``, each after the overridden hooks, which are called when it is taken."""
        if not self._overridden:
            return batches
        before, after = (self._overridden.get(name) for name in (BATCH_HOOKS[0], BATCH_HOOKS[2]))

        def apply(batch: Any) -> Any:
            if before is not None:
                batch = before(batch, dataloader_idx)
            if self.moves:
                batch = self.move(batch, dataloader_idx)
            return batch if after is None else after(batch, dataloader_idx)

        return map(apply, batches)
