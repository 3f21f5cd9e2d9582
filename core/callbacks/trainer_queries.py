"""Questions of callbacks about the position of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer


def is_training(trainer: Trainer) -> bool:
    """Whether a ``fit`` is running, and not only its sanity check."""
    return trainer.run.fit_loop is not None and not trainer.sanity_checking


def is_long_enough(trainer: Trainer) -> bool:
    """Whether the running ``fit`` has trained for ``min_epochs`` and ``min_steps``, so that it may stop."""
    return trainer.running_fit("is_long_enough").is_long_enough


def validates_once_in_each_epoch(trainer: Trainer) -> bool:
    """Whether validation runs exactly once at the end of every epoch, or never."""
    once = trainer.check_val_every_n_epoch == 1 and trainer.val_check_interval == 1.0
    return once or not trainer.enable_validation


def has_validated_in_epoch(trainer: Trainer, default: bool = False) -> bool:
    """Whether validation has run in this epoch; ``default`` where the fit has none."""
    return trainer.progress.validated >= 0 if trainer.enable_validation else default


def validates_next(trainer: Trainer) -> bool:
    """Whether a validation follows the newest batch; every process calls it."""
    return trainer.run.fit_loop is not None and trainer.run.fit_loop.validates_next()
