"""The Module: a model together with its training, validation, test and prediction steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from core.errors import ConfigurationError
from core.trainer.datamodule import DataHooks
from core.trainer.hooks import ModuleHooks

__all__ = ["Module"]


class Module(nn.Module, ModuleHooks, DataHooks):
    """A model together with its steps; a plain :class:`torch.nn.Module` in every other respect."""

    _trainer: Any = None
    _step_modules: tuple[nn.Module, ...] = ()
    """Its StepModule, once there is one; in a tuple, since torch would take it for a submodule otherwise."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Compute the loss of one training batch.

        Returns:
            The loss, a scalar tensor; or a mapping with the loss under ``"loss"``; or ``None`` to skip the batch, if
            one process trains.
        """
        raise NotImplementedError

    def training_step_end(self, output: Any) -> Any:
        """Turn the output of :meth:`training_step` into the loss; by default ``output`` itself.

        It runs outside of the module that the strategy wraps. If one process splits a batch over several devices, it
        runs once, on the gathered outputs of all parts.

        Args:
            output: What :meth:`training_step` returned. If the batch was split, tensors of the parts are concatenated
                along the first dimension, and scalars become a vector with one item for each part.

        Returns:
            See :meth:`training_step`.
        """
        return output

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate one validation batch, without gradients; logged values are averaged over the epoch."""
        raise NotImplementedError

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate one test batch, without gradients; logged values are averaged over the epoch."""
        raise NotImplementedError

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """Predict one batch, without gradients; by default ``self(batch)``."""
        del batch_idx
        return self(batch)

    def configure_optimizers(self) -> Any:
        """Create the optimizer, and optionally learning rate schedulers.

        Returns:
            An optimizer; ``[optimizer], [scheduler]``; or ``{"optimizer": …, "lr_scheduler": …}``. A scheduler may be
            given as ``{"scheduler": …, "interval": "epoch" or "step", "frequency": 1}``. Its ``step`` is called
            without arguments.
        """
        raise NotImplementedError

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str = "mean",
        sync_dist: bool = False,
        batch_size: int | None = None,
    ) -> None:
        """Log a value, in a step or in a hook between the start and the end of an epoch or stage.

        The value is published as ``name``. If the values of steps and of the epoch are both recorded, they are
        published as ``name_step`` and ``name_epoch``, and ``name`` is the newest of both. A value that is logged in
        ``on_train_epoch_end`` or ``on_validation_epoch_end`` belongs to the epoch.

        Args:
            name: The metric's name. The first call with a name decides its options for the whole stage; a second set of
                options is decided by the first call at an epoch's end.
            value: A number or a scalar tensor. It is copied, and stays on its device until it is read.
            prog_bar: Show it in the progress bar.
            on_step: Record the value of each step; by default only in training.
            on_epoch: Record the value of the epoch over all processes; by default only outside of training.
            reduce_fx: How the values of an epoch are reduced: ``mean`` (weighted by batch size), ``sum``, ``min`` or
                ``max``. Sums and means of 16-bit values are computed in 32 bits.
            sync_dist: In training, reduce the value of each step over all processes, which then wait for each other.
                The value of an epoch is always that of all processes. In evaluation, where processes may take
                different numbers of steps, the value of a step is this process's own.
            batch_size: The value's weight in the mean; by default the first dimension of the first tensor in the
                batch that has one.

        Raises:
            ConfigurationError: The value is not a scalar, the reduction is unknown, no epoch or stage is running, or
                ``on_step=True`` at an epoch's end.
        """
        self.trainer.metric_log.log(name, value, prog_bar, on_step, on_epoch, reduce_fx, sync_dist, batch_size)

    def log_dict(self, values: Mapping[str, Any], **options: Any) -> None:
        """Call :meth:`log` for each item."""
        for name, value in values.items():
            self.log(name, value, **options)

    @property
    def trainer(self) -> Any:
        """The :class:`core.Trainer` that is running this module.

        Raises:
            ConfigurationError: No Trainer is running this module.
        """
        trainer = self._trainer
        if trainer is None:
            raise ConfigurationError(f"{type(self).__name__}.trainer: no Trainer is running this module.")
        return trainer

    @property
    def device(self) -> torch.device:
        """The device of the first parameter; the default device if there are no parameters."""
        return next((parameter.device for parameter in self.parameters()), torch.empty(0).device)

    @property
    def current_epoch(self) -> int:
        """The running epoch, from 0; 0 if no Trainer is running this module."""
        return int(self._trainer.current_epoch) if self._trainer is not None else 0

    @property
    def global_step(self) -> int:
        """Optimizer steps taken so far; 0 if no Trainer is running this module."""
        return int(self._trainer.global_step) if self._trainer is not None else 0

    def all_gather(self, data: Any) -> Any:
        """Gather tensors from all processes; see :meth:`core.Runtime.gather`."""
        return self.trainer.runtime.gather(data)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Call the built-in ``print``, in process 0 only."""
        self.trainer.runtime.print(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_trainer", "_step_modules")}
