"""The Module: a model together with its training, validation, test and prediction steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from core.errors import ConfigurationError
from core.trainer.hooks import ModuleHooks

if TYPE_CHECKING:
    from core.trainer.trainer import Trainer

__all__ = ["Module"]


class Module(nn.Module, ModuleHooks):
    """A model together with its steps; a plain :class:`torch.nn.Module` in every other respect."""

    _trainer: Trainer | None = None
    _steps: StepModule | None = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """One training batch.

        Returns:
            The loss, a scalar tensor; a mapping with it under ``"loss"``; or, where one process trains, ``None`` to
            skip the batch.
        """
        raise NotImplementedError

    def training_step_end(self, output: Any) -> Any:
        """What the training step comes to; ``output`` itself unless overridden.

        It runs outside of what the strategy wraps: where one process splits a batch over several devices, after the
        parts' outputs were gathered.

        Args:
            output: What :meth:`training_step` returned; of several parts, each tensor joined along its first dimension,
                scalars as a vector with an item for each part.

        Returns:
            As :meth:`training_step`.
        """
        return output

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """One validation batch, without gradients; what it logs is averaged over the epoch."""
        raise NotImplementedError

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """One test batch, without gradients; what it logs is averaged over the epoch."""
        raise NotImplementedError

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """One batch to predict, without gradients; ``self(batch)`` unless overridden."""
        del batch_idx
        return self(batch)

    def configure_optimizers(self) -> Any:
        """How to optimize.

        Returns:
            An optimizer; ``[optimizer], [scheduler]``; or ``{"optimizer": …, "lr_scheduler": …}``, where the scheduler
            may be ``{"scheduler": …, "interval": "epoch" or "step", "frequency": 1}``. The scheduler is stepped
            without an argument.
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
        """Record a value, in a step or in a hook from an epoch's or stage's start to its end.

        It is published under its name; one that is recorded in both ways under its name with ``_step`` and ``_epoch``.

        Args:
            name: Its name; how it is recorded is decided by the first call under this name.
            value: A number or a scalar tensor, as it is now; it stays on its device until somebody looks at it.
            prog_bar: Show it in the progress bar.
            on_step: Record each step's value; by default in training only.
            on_epoch: Record the epoch's value over all processes; by default outside of training only.
            reduce_fx: How an epoch's values are combined: ``mean`` (weighted by batch size), ``sum``, ``min``, ``max``.
                Sums and means of 16-bit values are of 32 bits.
            sync_dist: Combine each step's value over processes, which makes them wait for one another.
            batch_size: The value's weight in the mean; unless given, the first dimension of the batch's first tensor
                that has one.

        Raises:
            ConfigurationError: The value is no scalar, the reduction is unknown, or no epoch or stage is running.
        """
        log = self.trainer.metric_log
        if log is None:
            raise ConfigurationError(
                f"log({name!r}): no epoch or evaluation is running. Valid: in a step, or in a hook from "
                "on_train_epoch_start to on_train_epoch_end or from on_evaluation_start to on_evaluation_end."
            )
        log.log(name, value, prog_bar, on_step, on_epoch, reduce_fx, sync_dist, batch_size)

    def log_dict(self, values: Mapping[str, Any], **options: Any) -> None:
        """:meth:`log` for each item."""
        for name, value in values.items():
            self.log(name, value, **options)

    @property
    def trainer(self) -> Trainer:
        """The Trainer that is running this module.

        Raises:
            ConfigurationError: None is.
        """
        trainer = self._trainer
        if trainer is None:
            raise ConfigurationError(f"{type(self).__name__}.trainer: no Trainer is running this module.")
        return trainer

    @property
    def device(self) -> torch.device:
        """The device of the first parameter; the CPU's where there is none."""
        return next((parameter.device for parameter in self.parameters()), torch.empty(0).device)

    @property
    def current_epoch(self) -> int:
        """The running epoch, from 0; 0 where no Trainer is running this module."""
        return self._trainer.current_epoch if self._trainer is not None else 0

    @property
    def global_step(self) -> int:
        """Optimizer steps taken so far; 0 where no Trainer is running this module."""
        return self._trainer.global_step if self._trainer is not None else 0

    def all_gather(self, data: Any) -> Any:
        """:meth:`core.Runtime.gather`."""
        return self.trainer.runtime.gather(data)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """The built-in ``print``, in process 0 only."""
        self.trainer.runtime.print(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_trainer", "_steps")}


class StepModule(nn.Module):
    """Makes a step of the Module the forward pass that strategies wrap.

    Args:
        module: Whose steps.
    """

    step: Callable[[Any, int], Any]

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module
        self.use("training_step")

    @classmethod
    def of(cls, module: Module) -> StepModule:
        """The one of ``module``, for all its runs: a strategy may keep at it what it did to the module."""
        steps = module._steps
        if steps is None:
            steps = module.__dict__["_steps"] = cls(module)
        return steps

    def use(self, step: str) -> None:
        """Make ``step``, the name of one of the Module's methods, the forward pass."""
        self.__dict__["step"] = getattr(self.module, step)

    def forward(self, batch: Any, batch_idx: int) -> Any:
        """The step."""
        return self.step(batch, batch_idx)
