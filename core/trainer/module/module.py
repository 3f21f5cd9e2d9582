"""The Module: a model together with its training, validation, test and prediction steps."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...errors import ConfigurationError
from ..hints.read_only import refuse_assignments
from .datamodule import DataHooks
from .hooks import ModuleHooks
from .hparams import HyperParameters
from .logging_members import LoggingMembers
from .members import ModuleMembers
from .step_members import ModuleSteps

__all__ = ["Module"]

UNSENT = ("_trainer", "_last_trainer", "_step_modules", "_given_compiler")
"""Attributes that copies and pickles of a Module lack."""


@refuse_assignments
class Module(ModuleMembers, ModuleSteps, ModuleHooks, DataHooks, LoggingMembers, HyperParameters):
    """A model together with its steps; a plain :class:`torch.nn.Module` in every other respect."""

    _trainer: Any = None
    """Runs the module now."""
    _last_trainer: Any = None
    """A weak reference to the Trainer of the last run, if there was one: the module does not keep it alive."""
    _step_modules: tuple[nn.Module, ...] = ()
    """Its StepModule, once there is one; in a tuple, since torch would take it for a submodule otherwise."""

    _given_compiler: Any = None
    """What compiles a function as ``torch.compile`` compiled this module; ``None`` if it did not."""

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

    def validation_step_end(self, output: Any) -> Any:
        """Turn the output of :meth:`validation_step` into what hooks get; by default ``output`` itself."""
        return output

    def test_step_end(self, output: Any) -> Any:
        """Turn the output of :meth:`test_step` into what hooks get; by default ``output`` itself."""
        return output

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """Predict one batch, without gradients; by default ``self(batch)``."""
        del batch_idx
        return self(batch)

    def configure_model(self) -> None:
        """Create layers that ``__init__`` leaves out, such as large ones, in each process of the run.

        It is called once in each ``fit``, ``validate``, ``test`` and ``predict``, after ``setup`` and before the
        strategy sets the module up; before :meth:`load_from_checkpoint` loads parameters; and, where ``fit`` has
        started the processes, in the process that called it. So create only what is not there yet::

            def configure_model(self):
                if self.network is None:
                    self.network = build()
        """

    def configure_callbacks(self) -> Any:
        """Create callbacks of this module's, which join the Trainer's before each stage.

        Returns:
            A :class:`core.Callback`, or a list of them. One replaces those of the Trainer of exactly its class.
        """
        return []

    def configure_optimizers(self) -> Any:
        """Create optimizers, and optionally learning rate schedulers.

        Returns:
            An optimizer; ``[optimizer], [scheduler]``; or ``{"optimizer": …, "lr_scheduler": …}``. A scheduler may be
            given as a mapping with ``scheduler``, ``interval`` (``"epoch"`` or ``"step"``), ``frequency``, ``name``;
            and with ``monitor`` and ``strict`` if its ``step`` takes a metric, as that of ReduceLROnPlateau. With
            ``automatic_optimization = False`` also a list of several of these. ``None`` if nothing is optimized.
        """
        raise NotImplementedError

    @property
    def trainer(self) -> Any:
        """The :class:`core.Trainer` that is running this module, or was the last to do so and still exists.

        Raises:
            ConfigurationError: There is none.
        """
        trainer = self._newest_trainer
        if trainer is None:
            raise ConfigurationError(
                f"{type(self).__name__}.trainer: no Trainer is running this module. Use trainer, log() and "
                "optimizers() in steps and hooks, which fit, validate, test and predict call."
            )
        return trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        """Take the facts of ``trainer`` while no Trainer is running this module, for example in its tests."""
        self._trainer = trainer

    @property
    def current_epoch(self) -> int:
        """:attr:`trainer`'s running epoch, from 0, or number of completed epochs after its ``fit``; 0 without one."""
        trainer = self._newest_trainer
        return 0 if trainer is None else int(trainer.current_epoch)

    @property
    def global_step(self) -> int:
        """Optimizer steps that :attr:`trainer` has taken so far; 0 without one."""
        trainer = self._newest_trainer
        return 0 if trainer is None else int(trainer.global_step)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in UNSENT}
