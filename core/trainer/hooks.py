"""The places in the loop where a Module or a Callback may act.

One declaration serves both: a Callback's hooks take the trainer and the module first, a Module's do not. A hook that
nobody overrides is never called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

__all__ = ["Callback", "ModuleHooks", "bind_callbacks", "bind_hooks", "bind_module_hook"]


class ModuleHooks:
    """The hooks of a Module; all do nothing."""

    def on_fit_start(self) -> None:
        """Before the first epoch of ``fit``; everything is prepared, and the module is in training mode."""

    def on_fit_end(self) -> None:
        """After the last epoch of ``fit``."""

    def on_train_epoch_start(self) -> None:
        """Before an epoch's first batch."""

    def on_train_epoch_end(self) -> None:
        """After an epoch's last batch and its validation, before its checkpoint; what is logged here is the epoch's."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Before a training step."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a training step; ``outputs`` is its loss without gradient, or ``None`` where it skipped the batch."""

    def on_evaluation_start(self, stage: str) -> None:
        """Before the first batch of ``stage``: ``validate``, ``test`` or ``predict``; in evaluation mode."""

    def on_evaluation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a validation, test or prediction step."""

    def on_evaluation_end(self, stage: str) -> None:
        """After the last batch of ``stage``; what is logged here is the stage's."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add to ``checkpoint`` before it is written; in every process."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take from ``checkpoint`` after it was read; in every process."""


class Callback:
    """Something that acts beside the Module; every hook takes the trainer and the module first, and does nothing."""

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """As :meth:`ModuleHooks.on_fit_start`."""

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """As :meth:`ModuleHooks.on_fit_end`."""

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        """As :meth:`ModuleHooks.on_train_epoch_start`."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """As :meth:`ModuleHooks.on_train_epoch_end`; the module's metrics are known."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """As :meth:`ModuleHooks.on_train_batch_start`."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """As :meth:`ModuleHooks.on_train_batch_end`."""

    def on_evaluation_start(self, trainer: Any, module: Any, stage: str) -> None:
        """As :meth:`ModuleHooks.on_evaluation_start`."""

    def on_evaluation_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """As :meth:`ModuleHooks.on_evaluation_batch_end`."""

    def on_evaluation_end(self, trainer: Any, module: Any, stage: str) -> None:
        """As :meth:`ModuleHooks.on_evaluation_end`; the module's metrics are known."""

    def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
        """When the run ends with ``error``, before it is raised."""

    def state_dict(self) -> dict[str, Any]:
        """What of this callback goes into a checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""


Hooks = tuple[Callable[..., None], ...]


def bind_hooks(name: str, trainer: Any, module: Any, callbacks: Iterable[Callback]) -> Hooks:
    """The hooks of that name that somebody overrides, the module's first, each ready to be called with the rest."""
    return bind_module_hook(name, module) + bind_callbacks(name, trainer, module, callbacks)


def bind_module_hook(name: str, module: Any) -> Hooks:
    """The module's hook of that name, if it overrides it."""
    return () if getattr(type(module), name) is getattr(ModuleHooks, name) else (getattr(module, name),)


def bind_callbacks(name: str, trainer: Any, module: Any, callbacks: Iterable[Callback]) -> Hooks:
    """The hooks of that name that callbacks override."""
    overriding = (callback for callback in callbacks if getattr(type(callback), name) is not getattr(Callback, name))
    return tuple(partial(getattr(callback, name), trainer, module) for callback in overriding)
