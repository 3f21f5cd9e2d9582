"""Learning rate and batch size, found without training."""

from __future__ import annotations

from typing import Any

from torch import nn

from core.callbacks.batch_size_finder import BatchSizeFinder
from core.callbacks.learning_rate_finder import LearningRateFinder, LearningRateRange
from core.errors import WrongTypeError
from core.trainer.checks import check_module, check_optimization
from core.trainer.plain import as_module
from core.trainer.sources import DataSource
from core.trainer.trials import Trial

__all__ = ["Tuner", "find_batch_size", "find_learning_rate"]


def find_learning_rate(
    trainer: Any, module: nn.Module, train_dataloaders: Any = None, datamodule: Any = None, **options: Any
) -> LearningRateRange:
    """Search a learning rate as :class:`core.callbacks.LearningRateFinder` does, without training afterwards.

    Args:
        trainer: The Trainer whose settings, devices and strategy are used.
        module: The module; it is not changed but for the attribute with the learning rate.
        train_dataloaders: As in :meth:`core.Trainer.fit`.
        datamodule: As in :meth:`core.Trainer.fit`.
        **options: The arguments of :class:`core.callbacks.LearningRateFinder`.

    Returns:
        The learning rates and losses; ``suggestion()`` returns the learning rate that was set.
    """
    finder = LearningRateFinder(**options)
    finder.tune(_trial(trainer, module, train_dataloaders, datamodule))
    assert finder.optimal_lr is not None
    return finder.optimal_lr


def find_batch_size(trainer: Any, module: nn.Module, datamodule: Any = None, **options: Any) -> int:
    """Search a batch size as :class:`core.callbacks.BatchSizeFinder` does, without training afterwards.

    Args:
        trainer: The Trainer whose settings, devices and strategy are used.
        module: The module; it is not changed but for the attribute with the batch size.
        datamodule: As in :meth:`core.Trainer.fit`.
        **options: The arguments of :class:`core.callbacks.BatchSizeFinder`.

    Returns:
        The batch size that was set.
    """
    finder = BatchSizeFinder(**options)
    finder.tune(_trial(trainer, module, None, datamodule))
    assert finder.optimal_batch_size is not None
    return finder.optimal_batch_size


class Tuner:
    """Both searches under Lightning's names.

    Args:
        trainer: The Trainer whose settings, devices and strategy are used.
    """

    def __init__(self, trainer: Any) -> None:
        if not hasattr(trainer, "settings"):
            raise WrongTypeError(f"Tuner: trainer is an object of type {type(trainer).__name__}. Pass a core.Trainer.")
        self._trainer = trainer

    def lr_find(
        self, model: nn.Module, train_dataloaders: Any = None, datamodule: Any = None, **options: Any
    ) -> LearningRateRange:
        """See :func:`core.find_learning_rate`."""
        return find_learning_rate(self._trainer, model, train_dataloaders, datamodule, **options)

    def scale_batch_size(self, model: nn.Module, datamodule: Any = None, **options: Any) -> int:
        """See :func:`core.find_batch_size`."""
        return find_batch_size(self._trainer, model, datamodule, **options)


def _trial(trainer: Any, module: nn.Module, train_dataloaders: Any, datamodule: Any) -> Trial:
    adapted: Any = as_module(module)
    check_module(adapted, "training_step", "configure_optimizers")
    check_optimization(adapted, trainer.settings, trainer.strategy)
    source = DataSource.read("fit", adapted, datamodule, train_dataloaders=("train", train_dataloaders))
    return Trial(trainer, adapted, source)
